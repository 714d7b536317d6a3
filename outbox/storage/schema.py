"""Create the tables, and upgrade them from one version to the next.

The table `outbox_schema` is the history: it has a row for each version that was applied. An upgrade takes a lock that
all processes on the database share, so any number of them may start at once. The versions are in `schema_versions.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import peewee

from outbox.errors import SchemaError
from outbox.storage.dialect import Dialect
from outbox.storage.peewee_database import place_of
from outbox.storage.schema_version import Version
from outbox.storage.schema_versions import HISTORY, INBOX, VERSIONS
from outbox.table_names import Tables

__all__ = [
    "INBOX",
    "VERSIONS",
    "Version",
    "applied_version",
    "check",
    "create_inbox",
    "definition",
    "explaining_missing_inbox",
    "newest_version",
    "upgrade",
]

logger = logging.getLogger(__name__)


def upgrade(
    dialect: Dialect, *, inbox_elsewhere: bool = False, versions: Sequence[Version] = VERSIONS
) -> list[Version]:
    """Upgrade the tables to this library's version; return the versions that were applied.

    Many processes may do it at the same time. `inbox_elsewhere`: the inbox is in another database, so a table called
    `inbox` may be the application's own, and is left as it is.
    """
    with dialect.connection(create=True):
        dialect.check_encoding()
        if applied_version(dialect) >= versions[-1].number:
            return []
        with dialect.schema_lock():
            dialect.create_schema()
            if not dialect.has_table(dialect.tables.history):
                dialect.run(_history_statement(dialect.name, dialect.tables))
            done = _last_recorded(dialect)
            missing = [version for version in versions if version.number > done]
            for version in missing:
                _apply(dialect, version, inbox_elsewhere=inbox_elsewhere)
    for version in missing:
        logger.info("outbox schema: version %d applied (%s)", version.number, version.what)
    return missing


def check(dialect: Dialect, versions: Sequence[Version] = VERSIONS) -> None:
    """Raise SchemaError unless the tables exist and are new enough, in a database that stores every text."""
    with dialect.lock_limit():
        dialect.check_encoding()
        applied = applied_version(dialect)
    if applied == 0:
        raise dialect.missing_tables_error()
    needed = versions[-1].number
    if applied < needed:
        raise SchemaError(
            f"The outbox's tables are at version {applied}, and this library needs {needed}: run `outbox init`."
        )


def definition(kind: str, tables: Tables, *, after: int = 0) -> list[str]:
    """Return the statements that `upgrade` would run on a database at version `after` (0: without tables).

    The rows of the history are among them. `kind` is "postgres" or "sqlite".
    """
    if not 0 <= after <= newest_version():
        raise SchemaError(f"There is no version {after} of the outbox's tables: the newest is {newest_version()}.")
    statements = []
    if after == 0:
        statements += [f'CREATE SCHEMA IF NOT EXISTS "{tables.schema}"'] if tables.schema is not None else []
        statements.append(_history_statement(kind, tables))
    for version in VERSIONS:
        if version.number > after:
            quoted = "'{}'".format(version.what.replace("'", "''"))
            statements += [*version.statements(kind, tables), _record_statement(tables, str(version.number), quoted)]
    return [statement.strip() for statement in statements]


def create_inbox(dialect: Dialect) -> None:
    """Create the inbox's table alone, for an application that consumes messages and emits no events."""
    with dialect.connection(create=True):
        dialect.check_encoding()
        if not _has_inbox(dialect):
            with dialect.schema_lock():
                if not _has_inbox(dialect):
                    dialect.create_schema()
                    _run_statements(dialect, INBOX)


@contextmanager
def explaining_missing_inbox(dialect: Dialect) -> Iterator[None]:
    """Raise an error that says what to do if a statement in the block fails because the inbox has no table."""
    try:
        yield
    except (peewee.OperationalError, peewee.ProgrammingError) as error:
        if _is_missing_inbox(dialect, error):
            raise SchemaError(
                f"The inbox has no table in {dialect.place} yet: run `outbox init` there, or call "
                "outbox.inbox.create_tables() if this database has no outbox."
            ) from None
        raise


def _is_missing_inbox(dialect: Dialect, error: peewee.PeeweeException) -> bool:
    return dialect.is_missing_table(error) or f"no such table: {dialect.tables.inbox}" in str(error)


def _has_inbox(dialect: Dialect) -> bool:
    """Return whether the inbox's table exists; raise SchemaError if a table of that name is the application's own."""
    table = dialect.tables.inbox
    if not dialect.has_table(table):
        return False
    if not dialect.columns_of(table) >= {"message_id", "handler_name", "processed_at"}:
        raise SchemaError(
            f"{place_of(dialect.database)} has a table called `{table}` that is not the outbox's. Rename it, or set "
            "OUTBOX_TABLE_PREFIX or OUTBOX_SCHEMA, or give the inbox a database of its own: "
            "outbox.configure(inbox_database=…)."
        )
    return True


def newest_version() -> int:
    """Return the number of the version that this library needs."""
    return VERSIONS[-1].number


def applied_version(dialect: Dialect) -> int:
    """Return the number of the newest version that was applied; 0 without tables."""
    return _last_recorded(dialect) if dialect.has_table(dialect.tables.history) else 0


def _last_recorded(dialect: Dialect) -> int:
    row = dialect.run(f"SELECT max(version) FROM {dialect.tables.history}").fetchone()  # noqa: S608  (a table's name)
    return 0 if row[0] is None else int(row[0])


def _apply(dialect: Dialect, version: Version, *, inbox_elsewhere: bool) -> None:
    exists = version is INBOX and (dialect.has_table(dialect.tables.inbox) if inbox_elsewhere else _has_inbox(dialect))
    if not exists:
        _run_statements(dialect, version)
    parameter = "%s" if dialect.name == "postgres" else "?"
    dialect.run(_record_statement(dialect.tables, parameter, parameter), (version.number, version.what))


def _record_statement(tables: Tables, number: str, what: str) -> str:
    """Return the statement that records a version as applied."""
    return f"INSERT INTO {tables.history} (version, what) VALUES ({number}, {what})"  # noqa: S608  (our own texts)


def _history_statement(kind: str, tables: Tables) -> str:
    return HISTORY[kind].format_map(tables.placeholders)


def _run_statements(dialect: Dialect, version: Version) -> None:
    try:
        for statement in version.statements(dialect.name, dialect.tables):
            dialect.run(statement)
    except peewee.PeeweeException as error:
        raise SchemaError(
            f"Version {version.number} of the outbox's tables ({version.what}) could not be applied: {error}"
        ) from error
