"""The tables, and how they get from one version to the next.

`outbox_schema` is the history: a row for each version that was applied. Upgrading takes a lock that all processes on
the database share, so any number of them may start at once. A version, once released, never changes: what comes later
is a new one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import peewee

from outbox.database import Dialect, no_tables, place_of
from outbox.errors import SchemaError

logger = logging.getLogger("outbox")


@dataclass(frozen=True, slots=True)
class Version:
    number: int
    what: str
    postgres: tuple[str, ...]
    sqlite: tuple[str, ...]

    def statements(self, dialect: Dialect) -> tuple[str, ...]:
        return self.postgres if dialect.name == "postgres" else self.sqlite


# `json`, not `jsonb`, keeps the text as it was emitted. Half of each page stays free (fillfactor), so that a claim
# finds room beside the row and need not touch any index.
_POSTGRES_EVENT = """
CREATE TABLE outbox_event (
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
    CONSTRAINT unique_event_type_idempotency_key UNIQUE (event_type, idempotency_key)
) WITH (fillfactor = 50)
"""

# The number is SQLite's own row id: AUTOINCREMENT never hands one out twice, even after a clean-up.
_SQLITE_EVENT = """
CREATE TABLE outbox_event (
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
    CONSTRAINT unique_event_type_idempotency_key UNIQUE (event_type, idempotency_key)
)
"""

# Both are partial: they hold what is unfinished and what has failed, and don't grow with what was delivered.
_INDEXES = (
    "CREATE INDEX idx_outbox_pending_next ON outbox_event (next_attempt_at) WHERE next_attempt_at IS NOT NULL",
    "CREATE INDEX idx_outbox_failed ON outbox_event (id) WHERE next_attempt_at IS NULL AND delivered_at IS NULL",
)

# IF NOT EXISTS: it may also be made alone, by several at once. The one who waited for the lock may still have in its
# cache that there was no such table; CREATE looks again.
_POSTGRES_INBOX = """
CREATE TABLE IF NOT EXISTS inbox (
    message_id    varchar(255) NOT NULL,
    handler_name  varchar(255) NOT NULL,
    processed_at  timestamptz NOT NULL,
    PRIMARY KEY (message_id, handler_name)
)
"""
_SQLITE_INBOX = """
CREATE TABLE IF NOT EXISTS inbox (
    message_id    TEXT NOT NULL,
    handler_name  TEXT NOT NULL,
    processed_at  TEXT NOT NULL,
    PRIMARY KEY (message_id, handler_name)
)
"""
_INBOX_INDEX = "CREATE INDEX IF NOT EXISTS idx_inbox_processed_at ON inbox (processed_at)"

INBOX = Version(2, "the inbox", postgres=(_POSTGRES_INBOX, _INBOX_INDEX), sqlite=(_SQLITE_INBOX, _INBOX_INDEX))

# Operators look events up by what they are about. The rest of what they ask is answered by the indexes that are there.
_AGGREGATE_INDEX = "CREATE INDEX idx_outbox_aggregate_id ON outbox_event (aggregate_id)"

# Who is at work, what the processes have counted, by the minute and since ever, and what operators have done.
_POSTGRES_OPERATIONS = (
    """
CREATE TABLE outbox_process (
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
CREATE TABLE outbox_total (
    name    varchar(100) NOT NULL,
    labels  varchar(500) NOT NULL,
    value   double precision NOT NULL,
    PRIMARY KEY (name, labels)
) WITH (fillfactor = 50)
""",
    """
CREATE TABLE outbox_minute (
    minute  timestamptz NOT NULL,
    name    varchar(100) NOT NULL,
    labels  varchar(500) NOT NULL,
    value   double precision NOT NULL,
    PRIMARY KEY (minute, name, labels)
) WITH (fillfactor = 50)
""",
    """
CREATE TABLE outbox_audit (
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
CREATE TABLE outbox_process (
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
CREATE TABLE outbox_total (
    name    TEXT NOT NULL,
    labels  TEXT NOT NULL,
    value   REAL NOT NULL,
    PRIMARY KEY (name, labels)
) WITHOUT ROWID
""",
    """
CREATE TABLE outbox_minute (
    minute  TEXT NOT NULL,
    name    TEXT NOT NULL,
    labels  TEXT NOT NULL,
    value   REAL NOT NULL,
    PRIMARY KEY (minute, name, labels)
) WITHOUT ROWID
""",
    """
CREATE TABLE outbox_audit (
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

# Which destinations the deployment has (`destinations/recorded.py`): a row for each pattern of each of them. What was
# retired stays as a row, so that an open delivery to it can be told from one to a destination that was never recorded.
# `outbox_control` holds what all workers have to know; they read a row anew when its version changes. `outbox_audience`
# holds each set of names once, so that an event keeps a number instead of names.
_POSTGRES_DESTINATIONS = (
    """
CREATE TABLE outbox_destination (
    name            varchar(255) NOT NULL,
    pattern         varchar(100) NOT NULL,
    recorded_at     timestamptz NOT NULL,
    seen_at         timestamptz NOT NULL,
    checked_at      timestamptz NOT NULL,
    absent_seconds  double precision NOT NULL DEFAULT 0,
    retired_at      timestamptz,
    replaced_by     varchar(255),
    PRIMARY KEY (name, pattern)
)
""",
    """
CREATE TABLE outbox_control (
    name        varchar(100) PRIMARY KEY,
    version     bigint NOT NULL,
    value       json,
    updated_at  timestamptz NOT NULL
)
""",
    "INSERT INTO outbox_control (name, version, updated_at) VALUES ('destinations', 0, now())",
    """
CREATE TABLE outbox_audience (
    id      integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    digest  varchar(64) NOT NULL UNIQUE,
    names   json NOT NULL
)
""",
)
_SQLITE_DESTINATIONS = (
    """
CREATE TABLE outbox_destination (
    name            TEXT NOT NULL,
    pattern         TEXT NOT NULL,
    recorded_at     TEXT NOT NULL,
    seen_at         TEXT NOT NULL,
    checked_at      TEXT NOT NULL,
    absent_seconds  REAL NOT NULL DEFAULT 0,
    retired_at      TEXT,
    replaced_by     TEXT,
    PRIMARY KEY (name, pattern)
)
""",
    """
CREATE TABLE outbox_control (
    name        TEXT PRIMARY KEY,
    version     INTEGER NOT NULL,
    value       TEXT,
    updated_at  TEXT NOT NULL
)
""",
    "INSERT INTO outbox_control (name, version, updated_at) VALUES ('destinations', 0, CURRENT_TIMESTAMP)",
    """
CREATE TABLE outbox_audience (
    id      INTEGER PRIMARY KEY,
    digest  TEXT NOT NULL UNIQUE,
    names   TEXT NOT NULL
)
""",
)

# Columns that may be null, or whose default is a constant: adding them changes the catalogue and rewrites no row.
_POSTGRES_EVENT_COLUMNS = """
ALTER TABLE outbox_event
    ADD COLUMN kind varchar(10) NOT NULL DEFAULT 'event',
    ADD COLUMN subject varchar(255),
    ADD COLUMN audience integer
"""
_SQLITE_EVENT_COLUMNS = (
    "ALTER TABLE outbox_event ADD COLUMN kind TEXT NOT NULL DEFAULT 'event'",
    "ALTER TABLE outbox_event ADD COLUMN subject TEXT",
    "ALTER TABLE outbox_event ADD COLUMN audience INTEGER",
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
    "postgres": """CREATE TABLE IF NOT EXISTS outbox_schema (
        version integer PRIMARY KEY, what text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())""",
    "sqlite": """CREATE TABLE IF NOT EXISTS outbox_schema (
        version INTEGER PRIMARY KEY, what TEXT NOT NULL, applied_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP)""",
}


def upgrade(dialect: Dialect, *, inbox_elsewhere: bool = False) -> list[Version]:
    """Bring the database to this library's version; answers what was applied. Safe to run from many processes.

    With the inbox elsewhere, an application's own table called `inbox` is left alone.
    """
    with dialect.connection():
        if _applied(dialect) >= _needed():
            return []
        with dialect.schema_lock():
            if not dialect.has_table("outbox_schema"):
                dialect.run(_HISTORY[dialect.name])
            done = _applied_inside(dialect)
            missing = [version for version in VERSIONS if version.number > done]
            for version in missing:
                _apply(dialect, version, inbox_elsewhere=inbox_elsewhere)
    for version in missing:
        logger.info("outbox schema: version %d applied (%s)", version.number, version.what)
    return missing


def check(dialect: Dialect) -> None:
    """Raise SchemaError unless the tables are there and new enough."""
    with dialect.connection():
        applied = _applied(dialect)
    if applied == 0:
        raise no_tables(dialect.database)
    if applied < _needed():
        raise SchemaError(
            f"The outbox's tables are at version {applied}, and this library needs {_needed()}: run `outbox init`."
        )


def create_inbox(dialect: Dialect) -> None:
    """The inbox's table alone, in the database of somebody who consumes and does not emit."""
    with dialect.connection():
        if not _has_inbox(dialect):
            with dialect.schema_lock():
                if not _has_inbox(dialect):
                    _run(dialect, INBOX)


@contextmanager
def explaining(database: peewee.Database) -> Iterator[None]:
    """Around the inbox's own statements: should its table be missing, say so."""
    try:
        yield
    except (peewee.OperationalError, peewee.ProgrammingError) as error:
        if getattr(getattr(error, "orig", None), "sqlstate", None) == "42P01" or "no such table: inbox" in str(error):
            raise SchemaError(
                f"The inbox has no table in {place_of(database)} yet: run `outbox init` there, or call "
                "outbox.inbox.create_tables() if this database has no outbox."
            ) from None
        raise


def _has_inbox(dialect: Dialect) -> bool:
    """Whether there is one, and it is ours: `inbox` is a name that an application may have had first."""
    if not dialect.has_table("inbox"):
        return False
    if not dialect.columns_of("inbox") >= {"message_id", "handler_name", "processed_at"}:
        raise SchemaError(
            f"{place_of(dialect.database)} has a table called `inbox` that is not the outbox's. Rename it, or give the "
            "inbox a database or a schema (search_path) of its own: outbox.configure(inbox_database=…)."
        )
    return True


def _needed() -> int:
    return VERSIONS[-1].number


def _applied(dialect: Dialect) -> int:
    """The newest version applied; 0 without tables."""
    return _applied_inside(dialect) if dialect.has_table("outbox_schema") else 0


def _applied_inside(dialect: Dialect) -> int:
    row = dialect.run("SELECT max(version) FROM outbox_schema").fetchone()
    return 0 if row[0] is None else int(row[0])


def _apply(dialect: Dialect, version: Version, *, inbox_elsewhere: bool) -> None:
    there = version is INBOX and (dialect.has_table("inbox") if inbox_elsewhere else _has_inbox(dialect))
    if not there:
        _run(dialect, version)
    mark = "%s" if dialect.name == "postgres" else "?"
    dialect.run(
        f"INSERT INTO outbox_schema (version, what) VALUES ({mark}, {mark})",  # noqa: S608  (marks, not values)
        (version.number, version.what),
    )


def _run(dialect: Dialect, version: Version) -> None:
    try:
        for statement in version.statements(dialect):
            dialect.run(statement)
    except peewee.PeeweeException as error:
        raise SchemaError(
            f"Version {version.number} of the outbox's tables ({version.what}) could not be applied: {error}"
        ) from error
