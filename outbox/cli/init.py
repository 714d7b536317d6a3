"""`outbox init`"""

from __future__ import annotations

import click

import outbox
from outbox import schema


@click.command()
def init() -> None:
    """Make the tables, or bring them up to date."""
    applied = schema.upgrade(outbox.current().dialect)
    for version in applied:
        click.echo(f"version {version.number}: {version.what}")
    click.echo("The tables are ready." if applied else "The tables were up to date.")
