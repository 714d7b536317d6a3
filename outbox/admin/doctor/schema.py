"""Check that the tables and their indexes are those that this version of the library needs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from outbox.admin.doctor.check import Context, Finding, ok, problem, warning
from outbox.storage.dialect import Dialect
from outbox.storage.models import OutboxEvent
from outbox.storage.peewee_database import place_of
from outbox.storage.schema import applied_version, newest_version
from outbox.storage.schema_versions import INBOX, VERSIONS

_TABLE = re.compile(r'CREATE TABLE (?:IF NOT EXISTS )?((?:"\w+"\.)?\w+)')
_INDEX = re.compile(r'CREATE (?:UNIQUE )?INDEX (?:IF NOT EXISTS )?(\w+) ON ((?:"\w+"\.)?\w+)')
_CONSTRAINT = re.compile(r"CONSTRAINT (\w+) (UNIQUE \([^)]*\))")

# An index on one of these columns prevents HOT updates (heap-only tuples): every claim would write to every index.
_CHANGING_COLUMNS = ("status", "attempts", "lease_id", "lease_until", "updated_at", "progress", "error_message")

_POSTGRES_INDEXES = """
SELECT i.relname, t.relname, x.indisvalid AND x.indisready, pg_get_indexdef(x.indexrelid)
FROM pg_index AS x JOIN pg_class AS i ON i.oid = x.indexrelid JOIN pg_class AS t ON t.oid = x.indrelid
WHERE x.indrelid = ANY (SELECT to_regclass(name) FROM unnest(%s::text[]) AS name)
"""
_SQLITE_INDEXES = "SELECT name, tbl_name, coalesce(sql, '') FROM sqlite_master WHERE type = 'index'"


def tables(context: Context) -> Iterator[Finding]:
    """Check that the tables exist, with all columns, in the version that this library needs."""
    dialect = context.box.dialect
    place, event = dialect.place, dialect.tables.event
    applied, needed = applied_version(dialect), newest_version()
    if applied == 0:
        yield problem(
            f"The outbox has no tables in {place}.",
            "Run `outbox init`, or set OUTBOX_DATABASE_URL to the database that has the tables.",
        )
        return
    if applied < needed:
        yield problem(
            f"The tables in {place} have the version {applied}, but this library needs {needed}.", "Run `outbox init`."
        )
        return
    missing = [name for name in _needed_tables(dialect) if not dialect.has_table(name)]
    columns = set(OutboxEvent._meta.columns) - dialect.columns_of(event)
    missing += [f"{event}.{name}" for name in sorted(columns)] if event not in missing else []
    if missing:
        yield problem(
            f"The tables in {place} have the version {applied}, but these are missing: {', '.join(missing)}.",
            "Restore the database from a backup. If its events don't matter, drop all tables of the outbox, including "
            f"{dialect.tables.history}, and run `outbox init` to create them again.",
        )
    elif applied > needed:
        yield warning(
            f"The tables in {place} have the version {applied}, which is newer than this library's {needed}.",
            "Install the version of the library that the other hosts have: `pip install --upgrade dramatiq-outbox`.",
        )
    else:
        yield ok(f"The tables have the version {applied}, which this library needs.")


def inbox(context: Context) -> Iterator[Finding]:
    """Check that the table of the inbox exists. The inbox may have a database of its own."""
    dialect = context.box.inbox.dialect
    table = dialect.tables.inbox
    with dialect.connection():
        if not dialect.has_table(table):
            yield problem(
                f"The inbox has no table in {dialect.place}.",
                "Run `outbox init`; if the inbox has a database of its own, call `outbox.inbox.create_tables()`.",
            )
        elif not dialect.columns_of(table) >= {"message_id", "handler_name", "processed_at"}:
            yield problem(
                f"{place_of(dialect.database)} has a table {table} that does not belong to the outbox.",
                "Rename it, set OUTBOX_TABLE_PREFIX or OUTBOX_SCHEMA, or give the inbox a database of its own: "
                "`outbox.configure(inbox_database=…)`.",
            )
        else:
            yield ok(f"The inbox's table is in {dialect.place}.")


def indexes(context: Context) -> Iterator[Finding]:
    """Check that all indexes exist and are valid, and that no other index makes claims slow."""
    dialect = context.box.dialect
    needed = _needed_indexes(dialect)
    existing = _existing_indexes(context)
    findings = [
        problem(f"The index {name} of {table} is missing: {_cost(dialect, name)}", f"Run `{statement}`.")
        for name, (table, statement) in needed.items()
        if name not in existing
    ]
    for name, (table, valid, definition) in existing.items():
        if not valid:
            findings.append(_invalid_index(dialect, name, table, is_needed=name in needed or name.endswith("_pkey")))
        elif table == dialect.tables.name("event") and name not in needed and context.on_postgres:
            columns = [
                column
                for column in _CHANGING_COLUMNS
                if re.search(rf"\b{column}\b", definition.partition(" USING ")[2])
            ]
            if columns:
                findings.append(_prevents_hot_updates(dialect, name, columns))
    yield from findings
    if not findings:
        yield ok("All indexes are present and valid." if context.on_postgres else "All indexes are present.")


def _cost(dialect: Dialect, name: str) -> str:
    """Return what happens while this index is missing."""
    names = dialect.tables.placeholders
    if name == "{index_prefix}pending_next".format_map(names):
        return "every claim reads the whole table."
    if name == "{constraint_prefix}unique_event_type_idempotency_key".format_map(names):
        return "every emit fails, since duplicates can't be detected."
    return "lists and searches are slow."


def _invalid_index(dialect: Dialect, name: str, table: str, *, is_needed: bool) -> Finding:
    what = (
        f"The index {name} of {table} is invalid, as after a CREATE INDEX CONCURRENTLY that failed: it is not used, "
        "but every write updates it."
    )
    index = dialect.tables.in_schema(name)
    if is_needed:
        return problem(what, f"Run `REINDEX INDEX CONCURRENTLY {index}`.")
    return warning(what, f"Run `DROP INDEX CONCURRENTLY {index}`.")


def _prevents_hot_updates(dialect: Dialect, name: str, columns: list[str]) -> Finding:
    return warning(
        f"The index {name} of {dialect.tables.event} contains {', '.join(columns)}: no claim can be a HOT update, so "
        "deliveries are slower and the table grows.",
        f"Run `DROP INDEX CONCURRENTLY {dialect.tables.in_schema(name)}`.",
    )


def _statements(dialect: Dialect) -> Iterator[str]:
    """Yield the statements that create the tables, except that of the inbox, which may be in another database."""
    for version in VERSIONS:
        if version is not INBOX:
            yield from version.statements(dialect.name, dialect.tables)


def _needed_tables(dialect: Dialect) -> list[str]:
    """Return the names of the tables that must exist."""
    return [name for statement in _statements(dialect) for name in _TABLE.findall(statement)]


def _needed_indexes(dialect: Dialect) -> dict[str, tuple[str, str]]:
    """Return, by name, the table of each index that must exist and the statement that creates it.

    On SQLite the indexes of constraints are left out, because SQLite chooses their names.
    """
    indexes: dict[str, tuple[str, str]] = {}
    for statement in _statements(dialect):
        for name, table in _INDEX.findall(statement):
            indexes[name] = table, _create_statement(dialect, statement)
        for name, rule in _CONSTRAINT.findall(statement) if dialect.name == "postgres" else ():
            table = _TABLE.findall(statement)[0]
            indexes[name] = table, f"ALTER TABLE {table} ADD CONSTRAINT {name} {rule}"
    return indexes


def _create_statement(dialect: Dialect, statement: str) -> str:
    text = " ".join(statement.split())
    return text.replace("CREATE INDEX ", "CREATE INDEX CONCURRENTLY ") if dialect.name == "postgres" else text


def _existing_indexes(context: Context) -> dict[str, tuple[str, bool, str]]:
    """Return, by name, the table of each index that exists, whether it is valid, and its definition."""
    if context.on_postgres:
        rows = context.rows(_POSTGRES_INDEXES, _needed_tables(context.box.dialect))
        return {name: (table, valid, definition) for name, table, valid, definition in rows}
    return {name: (table, True, definition) for name, table, definition in context.rows(_SQLITE_INDEXES)}
