"""`outbox init`: create or upgrade the tables, or print the SQL that does."""

from __future__ import annotations

import click

from outbox.application_modules import import_modules
from outbox.core import Outbox
from outbox.current_outbox import current
from outbox.storage import schema


@click.command(short_help="Create the tables, or upgrade them.")
@click.argument("modules", metavar="[MODULE...]", nargs=-1)
@click.option("--sql", "as_sql", is_flag=True, help="Print the SQL instead of running it; needs no connection.")
@click.option(
    "--from",
    "after",
    type=click.IntRange(min=0),
    metavar="N",
    help="With --sql: print only what upgrades version N of the tables.",
)
@click.option("--no-transaction", is_flag=True, help="With --sql: print the statements without BEGIN and COMMIT.")
def init(modules: tuple[str, ...], as_sql: bool, after: int | None, no_transaction: bool) -> None:
    """Create the tables, or upgrade them to this version.

    The database is that of OUTBOX_DATABASE_URL, or the one that MODULE passes to outbox.configure.
    """
    if not as_sql and (after is not None or no_transaction):
        raise click.UsageError("--from and --no-transaction need --sql.")
    import_modules(modules)
    box = current()
    if as_sql:
        _print_sql(box, 0 if after is None else after, transaction=not no_transaction)
        return
    for version in box.upgrade_schema():
        click.echo(f"applied version {version.number} ({version.what})")
    click.echo(f"The tables are ready in {box.dialect.place}")


def _print_sql(box: Outbox, after: int, *, transaction: bool) -> None:
    statements = schema.definition(box.dialect.name, box.dialect.tables, after=after)
    if transaction and statements:
        statements = ["BEGIN", *box.dialect.schema_timeout(), *statements, "COMMIT"]
    for statement in statements:
        click.echo(f"{statement};")
