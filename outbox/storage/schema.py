"""The tables, and how they get from one version to the next.

`outbox_schema` is the history: a row for each version that was applied. Upgrading takes a lock that all processes on
the database share, so any number of them may start at once. A version, once released, never changes: what comes later
is a new one. All names come from `tables.py`; the statements have placeholders for them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import peewee

from outbox.errors import SchemaError
from outbox.storage.dialect import Dialect
from outbox.storage.peewee_database import place_of
from outbox.table_names import Tables

logger = logging.getLogger("outbox")


@dataclass(frozen=True, slots=True)
class Version:
    number: int
    what: str
    postgres: tuple[str, ...]
    sqlite: tuple[str, ...]

    def statements(self, kind: str, tables: Tables) -> tuple[str, ...]:
        """Return what makes this version on `kind` of database, "postgres" or "sqlite"."""
        templates = self.postgres if kind == "postgres" else self.sqlite
        return tuple(template.format_map(tables.placeholders) for template in templates)


# `json`, not `jsonb`, keeps the text as it was emitted. Half of each page stays free (fillfactor), so that a claim
# finds room beside the row and need not touch any index.
_POSTGRES_EVENT = """
CREATE TABLE {event_table} (
    id               uuid PRIMARY KEY,
    seq              bigint GENERATED ALWAYS AS IDENTITY,
    aggregate_type   varchar(100) NOT NULL,
    aggregate_id     varchar(100) NOT NULL,
    event_type       varchar(100) NOT NULL,
    ordering_key     varchar(255),
    payload          json NOT NULL,
    headers          json NOT NULL,
    correlation_id   varchar(255),
    tenant_id        varchar(255),
    idempotency_key  varchar(255) NOT NULL,
    status           varchar(10) NOT NULL CHECK (status IN ('pending', 'sending', 'delivered', 'failed')),
    attempts         integer NOT NULL,
    max_attempts     integer NOT NULL,
    next_attempt_at  timestamptz,
    lease_id         uuid,
    lease_until      timestamptz,
    progress         json,
    delivered_at     timestamptz,
    error_message    text,
    created_at       timestamptz NOT NULL,
    updated_at       timestamptz NOT NULL,
    CONSTRAINT {constraint_prefix}unique_event_type_idempotency_key UNIQUE (event_type, idempotency_key)
) WITH (fillfactor = 50)
"""

# The number is SQLite's own row id: AUTOINCREMENT never hands one out twice, even after a clean-up.
_SQLITE_EVENT = """
CREATE TABLE {event_table} (
    seq              INTEGER PRIMARY KEY AUTOINCREMENT,
    id               TEXT NOT NULL UNIQUE,
    aggregate_type   TEXT NOT NULL,
    aggregate_id     TEXT NOT NULL,
    event_type       TEXT NOT NULL,
    ordering_key     TEXT,
    payload          TEXT NOT NULL,
    headers          TEXT NOT NULL,
    correlation_id   TEXT,
    tenant_id        TEXT,
    idempotency_key  TEXT NOT NULL,
    status           TEXT NOT NULL CHECK (status IN ('pending', 'sending', 'delivered', 'failed')),
    attempts         INTEGER NOT NULL,
    max_attempts     INTEGER NOT NULL,
    next_attempt_at  TEXT,
    lease_id         TEXT,
    lease_until      TEXT,
    progress         TEXT,
    delivered_at     TEXT,
    error_message    TEXT,
    created_at       TEXT NOT NULL,
    updated_at       TEXT NOT NULL,
    CONSTRAINT {constraint_prefix}unique_event_type_idempotency_key UNIQUE (event_type, idempotency_key)
)
"""

# Both are partial: they hold what is unfinished and what has failed, and don't grow with what was delivered.
_INDEXES = (
    "CREATE INDEX {index_prefix}pending_next ON {event_table} (next_attempt_at) WHERE next_attempt_at IS NOT NULL",
    "CREATE INDEX {index_prefix}failed ON {event_table} (id) WHERE next_attempt_at IS NULL AND delivered_at IS NULL",
)

# IF NOT EXISTS: it may also be made alone, by several at once. The one who waited for the lock may still have in its
# cache that there was no such table; CREATE looks again.
_POSTGRES_INBOX = """
CREATE TABLE IF NOT EXISTS {inbox_table} (
    message_id    varchar(255) NOT NULL,
    handler_name  varchar(255) NOT NULL,
    processed_at  timestamptz NOT NULL,
    PRIMARY KEY (message_id, handler_name)
)
"""
_SQLITE_INBOX = """
CREATE TABLE IF NOT EXISTS {inbox_table} (
    message_id    TEXT NOT NULL,
    handler_name  TEXT NOT NULL,
    processed_at  TEXT NOT NULL,
    PRIMARY KEY (message_id, handler_name)
)
"""
_INBOX_INDEX = "CREATE INDEX IF NOT EXISTS {inbox_index} ON {inbox_table} (processed_at)"

INBOX = Version(2, "the inbox", postgres=(_POSTGRES_INBOX, _INBOX_INDEX), sqlite=(_SQLITE_INBOX, _INBOX_INDEX))

# Operators look events up by what they are about. The rest of what they ask is answered by the indexes that are there.
_AGGREGATE_INDEX = "CREATE INDEX {index_prefix}aggregate_id ON {event_table} (aggregate_id)"

# Who is at work, what the processes have counted, by the minute and since ever, and what operators have done.
_POSTGRES_OPERATIONS = (
    """
CREATE TABLE {process_table} (
    id          varchar(36) PRIMARY KEY,
    kind        varchar(20) NOT NULL,
    host        varchar(255) NOT NULL,
    pid         integer NOT NULL,
    started_at  timestamptz NOT NULL,
    seen_at     timestamptz NOT NULL,
    details     json NOT NULL
)
""",
    """
CREATE TABLE {total_table} (
    name    varchar(100) NOT NULL,
    labels  varchar(500) NOT NULL,
    value   double precision NOT NULL,
    PRIMARY KEY (name, labels)
) WITH (fillfactor = 50)
""",
    """
CREATE TABLE {minute_table} (
    minute  timestamptz NOT NULL,
    name    varchar(100) NOT NULL,
    labels  varchar(500) NOT NULL,
    value   double precision NOT NULL,
    PRIMARY KEY (minute, name, labels)
) WITH (fillfactor = 50)
""",
    """
CREATE TABLE {audit_table} (
    id        uuid PRIMARY KEY,
    at        timestamptz NOT NULL,
    who       varchar(255) NOT NULL,
    action    varchar(20) NOT NULL,
    filters   json NOT NULL,
    affected  bigint NOT NULL,
    ended_at  timestamptz
)
""",
)
_SQLITE_OPERATIONS = (
    """
CREATE TABLE {process_table} (
    id          TEXT PRIMARY KEY,
    kind        TEXT NOT NULL,
    host        TEXT NOT NULL,
    pid         INTEGER NOT NULL,
    started_at  TEXT NOT NULL,
    seen_at     TEXT NOT NULL,
    details     TEXT NOT NULL
)
""",
    """
CREATE TABLE {total_table} (
    name    TEXT NOT NULL,
    labels  TEXT NOT NULL,
    value   REAL NOT NULL,
    PRIMARY KEY (name, labels)
) WITHOUT ROWID
""",
    """
CREATE TABLE {minute_table} (
    minute  TEXT NOT NULL,
    name    TEXT NOT NULL,
    labels  TEXT NOT NULL,
    value   REAL NOT NULL,
    PRIMARY KEY (minute, name, labels)
) WITHOUT ROWID
""",
    """
CREATE TABLE {audit_table} (
    id        TEXT PRIMARY KEY,
    at        TEXT NOT NULL,
    who       TEXT NOT NULL,
    action    TEXT NOT NULL,
    filters   TEXT NOT NULL,
    affected  INTEGER NOT NULL,
    ended_at  TEXT
)
""",
)

OPERATIONS = Version(
    3,
    "for operators",
    postgres=(_AGGREGATE_INDEX, *_POSTGRES_OPERATIONS),
    sqlite=(_AGGREGATE_INDEX, *_SQLITE_OPERATIONS),
)

# Which destinations the deployment has (see `recorded_destinations.py`): a row for each pattern of each. What was
# retired stays as a row, so that an open delivery to it can be told from one to a destination that was never recorded.
# `outbox_control` holds what all workers have to know; they read a row anew when its version changes. `outbox_audience`
# holds each set of names once, so that an event keeps a number instead of names.
_POSTGRES_DESTINATIONS = (
    """
CREATE TABLE {destination_table} (
    name            varchar(255) NOT NULL,
    pattern         varchar(100) NOT NULL,
    recorded_at     timestamptz NOT NULL,
    seen_at         timestamptz NOT NULL,
    checked_at      timestamptz NOT NULL,
    absent_seconds  double precision NOT NULL DEFAULT 0,
    retired_at      timestamptz,
    retired_by      varchar(255),
    replaced_by     varchar(255),
    PRIMARY KEY (name, pattern)
)
""",
    """
CREATE TABLE {control_table} (
    name        varchar(100) PRIMARY KEY,
    version     bigint NOT NULL,
    value       json,
    updated_at  timestamptz NOT NULL
)
""",
    "INSERT INTO {control_table} (name, version, updated_at) VALUES ('destinations', 0, now())",
    """
CREATE TABLE {audience_table} (
    id      integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    digest  varchar(64) NOT NULL UNIQUE,
    names   json NOT NULL
)
""",
)
_SQLITE_DESTINATIONS = (
    """
CREATE TABLE {destination_table} (
    name            TEXT NOT NULL,
    pattern         TEXT NOT NULL,
    recorded_at     TEXT NOT NULL,
    seen_at         TEXT NOT NULL,
    checked_at      TEXT NOT NULL,
    absent_seconds  REAL NOT NULL DEFAULT 0,
    retired_at      TEXT,
    retired_by      TEXT,
    replaced_by     TEXT,
    PRIMARY KEY (name, pattern)
)
""",
    """
CREATE TABLE {control_table} (
    name        TEXT PRIMARY KEY,
    version     INTEGER NOT NULL,
    value       TEXT,
    updated_at  TEXT NOT NULL
)
""",
    "INSERT INTO {control_table} (name, version, updated_at) VALUES ('destinations', 0, CURRENT_TIMESTAMP)",
    """
CREATE TABLE {audience_table} (
    id      INTEGER PRIMARY KEY,
    digest  TEXT NOT NULL UNIQUE,
    names   TEXT NOT NULL
)
""",
)

# Columns that may be null, or whose default is a constant: adding them changes the catalogue and rewrites no row.
_POSTGRES_EVENT_COLUMNS = """
ALTER TABLE {event_table}
    ADD COLUMN kind varchar(10) NOT NULL DEFAULT 'event',
    ADD COLUMN subject varchar(255),
    ADD COLUMN audience integer
"""
_SQLITE_EVENT_COLUMNS = (
    "ALTER TABLE {event_table} ADD COLUMN kind TEXT NOT NULL DEFAULT 'event'",
    "ALTER TABLE {event_table} ADD COLUMN subject TEXT",
    "ALTER TABLE {event_table} ADD COLUMN audience INTEGER",
)

DESTINATIONS = Version(
    4,
    "the destinations",
    postgres=(*_POSTGRES_DESTINATIONS, _POSTGRES_EVENT_COLUMNS),
    sqlite=(*_SQLITE_DESTINATIONS, *_SQLITE_EVENT_COLUMNS),
)

VERSIONS = (
    Version(
        1,
        "the events",
        postgres=(_POSTGRES_EVENT, *_INDEXES),
        sqlite=(_SQLITE_EVENT, *_INDEXES),
    ),
    INBOX,
    OPERATIONS,
    DESTINATIONS,
)

_HISTORY = {
    "postgres": """CREATE TABLE IF NOT EXISTS {history_table} (
        version integer PRIMARY KEY, what text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())""",
    "sqlite": """CREATE TABLE IF NOT EXISTS {history_table} (
        version INTEGER PRIMARY KEY, what TEXT NOT NULL, applied_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP)""",
}


def upgrade(dialect: Dialect, *, inbox_elsewhere: bool = False) -> list[Version]:
    """Bring the database to this library's version; answers what was applied. Safe to run from many processes.

    With the inbox elsewhere, an application's own table called `inbox` is left alone.
    """
    with dialect.connection(create=True):
        dialect.check_encoding()
        if _applied(dialect) >= _needed():
            return []
        with dialect.schema_lock():
            dialect.create_schema()
            if not dialect.has_table(dialect.tables.history):
                dialect.run(_history(dialect.name, dialect.tables))
            done = _applied_inside(dialect)
            missing = [version for version in VERSIONS if version.number > done]
            for version in missing:
                _apply(dialect, version, inbox_elsewhere=inbox_elsewhere)
    for version in missing:
        logger.info("outbox schema: version %d applied (%s)", version.number, version.what)
    return missing


def check(dialect: Dialect) -> None:
    """Raise SchemaError unless the tables are there and new enough, in a database that keeps any text."""
    with dialect.connection():
        dialect.check_encoding()
        applied = _applied(dialect)
    if applied == 0:
        raise dialect.missing_tables_error()
    if applied < _needed():
        raise SchemaError(
            f"The outbox's tables are at version {applied}, and this library needs {_needed()}: run `outbox init`."
        )


def definition(kind: str, tables: Tables, *, after: int = 0) -> list[str]:
    """Return the statements that `upgrade` would run on a database at version `after` (0: without tables).

    The rows of the history are among them. `kind` is "postgres" or "sqlite".
    """
    if not 0 <= after <= _needed():
        raise SchemaError(f"There is no version {after} of the outbox's tables: the newest is {_needed()}.")
    statements = []
    if after == 0:
        statements += [f'CREATE SCHEMA IF NOT EXISTS "{tables.schema}"'] if tables.schema is not None else []
        statements.append(_history(kind, tables))
    for version in VERSIONS:
        if version.number > after:
            statements += version.statements(kind, tables)
            statements.append(_record(tables, f"{version.number}", "'{}'".format(version.what.replace("'", "''"))))
    return [statement.strip() for statement in statements]


def create_inbox(dialect: Dialect) -> None:
    """The inbox's table alone, in the database of somebody who consumes and does not emit."""
    with dialect.connection(create=True):
        dialect.check_encoding()
        if not _has_inbox(dialect):
            with dialect.schema_lock():
                if not _has_inbox(dialect):
                    dialect.create_schema()
                    _run(dialect, INBOX)


@contextmanager
def explaining_missing_inbox(dialect: Dialect) -> Iterator[None]:
    """Around the inbox's own statements: should its table be missing, say so."""
    try:
        yield
    except (peewee.OperationalError, peewee.ProgrammingError) as error:
        if _says_no_inbox(dialect, error):
            raise SchemaError(
                f"The inbox has no table in {dialect.place} yet: run `outbox init` there, or call "
                "outbox.inbox.create_tables() if this database has no outbox."
            ) from None
        raise


def _says_no_inbox(dialect: Dialect, error: peewee.PeeweeException) -> bool:
    return dialect.is_missing_table(error) or f"no such table: {dialect.tables.inbox}" in str(error)


def _has_inbox(dialect: Dialect) -> bool:
    """Whether there is one, and it is ours: `inbox` is a name that an application may have had first."""
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


def _needed() -> int:
    return VERSIONS[-1].number


def _applied(dialect: Dialect) -> int:
    """The newest version applied; 0 without tables."""
    return _applied_inside(dialect) if dialect.has_table(dialect.tables.history) else 0


def _applied_inside(dialect: Dialect) -> int:
    row = dialect.run(f"SELECT max(version) FROM {dialect.tables.history}").fetchone()  # noqa: S608  (a table's name)
    return 0 if row[0] is None else int(row[0])


def _apply(dialect: Dialect, version: Version, *, inbox_elsewhere: bool) -> None:
    there = version is INBOX and (dialect.has_table(dialect.tables.inbox) if inbox_elsewhere else _has_inbox(dialect))
    if not there:
        _run(dialect, version)
    mark = "%s" if dialect.name == "postgres" else "?"
    dialect.run(_record(dialect.tables, mark, mark), (version.number, version.what))


def _record(tables: Tables, number: str, what: str) -> str:
    """The statement that notes a version as applied."""
    return f"INSERT INTO {tables.history} (version, what) VALUES ({number}, {what})"  # noqa: S608  (our own texts)


def _history(kind: str, tables: Tables) -> str:
    return _HISTORY[kind].format_map(tables.placeholders)


def _run(dialect: Dialect, version: Version) -> None:
    try:
        for statement in version.statements(dialect.name, dialect.tables):
            dialect.run(statement)
    except peewee.PeeweeException as error:
        raise SchemaError(
            f"Version {version.number} of the outbox's tables ({version.what}) could not be applied: {error}"
        ) from error
