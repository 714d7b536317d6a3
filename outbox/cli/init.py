"""`outbox init`"""

from __future__ import annotations

import click

from outbox.application_modules import import_modules
from outbox.core import Outbox
from outbox.current_outbox import current
from outbox.storage import schema


@click.command()
@click.argument("modules", metavar="[MODULE...]", nargs=-1)
@click.option("--sql", "as_sql", is_flag=True, help="Print the SQL and change nothing; needs no connection.")
@click.option(
    "--from",
    "after",
    type=click.IntRange(min=0),
    metavar="N",
    help="With --sql: only what comes after version N of the tables.",
)
@click.option(
    "--no-transaction", is_flag=True, help="With --sql: print the statements alone, without BEGIN and COMMIT."
)
def init(modules: tuple[str, ...], as_sql: bool, after: int | None, no_transaction: bool) -> None:
    """Make the tables, or bring them up to date.

    In the database of OUTBOX_DATABASE_URL, or in the one that MODULE hands to outbox.configure.
    """
    if not as_sql and (after is not None or no_transaction):
        raise click.UsageError("--from and --no-transaction need --sql.")
    import_modules(modules)
    box = current()
    if as_sql:
        _print(box, 0 if after is None else after, transaction=not no_transaction)
        return
    for version in box.upgrade_schema():
        click.echo(f"applied version {version.number} ({version.what})")
    click.echo(f"The tables are ready in {box.dialect.place}")


def _print(box: Outbox, after: int, *, transaction: bool) -> None:
    statements = schema.definition(box.dialect.name, box.dialect.tables, after=after)
    if transaction and statements:
        statements = ["BEGIN", *box.dialect.schema_timeout(), *statements, "COMMIT"]
    for statement in statements:
        click.echo(f"{statement};")
