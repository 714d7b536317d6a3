"""The command line: `outbox`. The outermost layer: it may import everything, and nothing imports it."""

from __future__ import annotations

import sys

import click

import outbox
from outbox.cli.consume import consume
from outbox.cli.init import init
from outbox.cli.up import up
from outbox.database import CONNECTION_ERRORS
from outbox.errors import OutboxError


@click.group()
@click.version_option(outbox.__version__, prog_name="outbox")
def cli() -> None:
    """A transactional outbox for Peewee and Dramatiq."""


cli.add_command(consume)
cli.add_command(init)
cli.add_command(up)


def main() -> None:
    """The console script: a mistake of the user's is one line, not a traceback."""
    try:
        cli()
    except OutboxError as error:
        click.echo(f"outbox: {error}", err=True)
        sys.exit(2)
    except CONNECTION_ERRORS as error:
        click.echo(f"outbox: the database (OUTBOX_DATABASE_URL) can't be used: {error}", err=True)
        sys.exit(2)
