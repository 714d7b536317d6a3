"""`outbox init`"""

from __future__ import annotations

import click

import outbox
from outbox.database import place_of
from outbox.modules import import_modules


@click.command()
@click.argument("modules", metavar="[MODULE...]", nargs=-1)
def init(modules: tuple[str, ...]) -> None:
    """Make the tables, or bring them up to date.

    In the database of OUTBOX_DATABASE_URL, or in the one that MODULE hands to outbox.configure.
    """
    import_modules(modules)
    box = outbox.current()
    for version in box.upgrade_schema():
        click.echo(f"applied version {version.number} ({version.what})")
    click.echo(f"The tables are ready in {place_of(box.database)}")
