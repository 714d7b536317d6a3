"""The versions of the tables, each with the statements that make it. `schema.py` applies them.

A version that was released never changes: every later change is a new version. All names come from `table_names.py`;
the statements have placeholders for them.
"""

from __future__ import annotations

from outbox.storage.schema_audit import AUDIT
from outbox.storage.schema_control import CONTROL
from outbox.storage.schema_ordering import ORDERING
from outbox.storage.schema_version import Version

# `json`, unlike `jsonb`, stores the text as it was emitted. Half of each page stays free (fillfactor), so that the new
# version of a claimed row fits on the same page, and no index has to be changed (a HOT update).
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

# `seq` is SQLite's own row id. With AUTOINCREMENT no number is used twice, even after a clean-up.
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

# Both indexes are partial: they hold unfinished and failed events, and don't grow with delivered ones.
_INDEXES = (
    "CREATE INDEX {index_prefix}pending_next ON {event_table} (next_attempt_at) WHERE next_attempt_at IS NOT NULL",
    "CREATE INDEX {index_prefix}failed ON {event_table} (id) WHERE next_attempt_at IS NULL AND delivered_at IS NULL",
)

# IF NOT EXISTS: the inbox can also be created alone (`create_inbox`), by several processes at once. PostgreSQL's cache
# may still tell the process that waited for the lock that there is no such table; CREATE looks again.
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

# Operators look events up by the aggregate. Their other queries use the indexes that exist.
_AGGREGATE_INDEX = "CREATE INDEX {index_prefix}aggregate_id ON {event_table} (aggregate_id)"

# The running processes, what all processes have counted in total and by the minute, and the audit log.
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

# The destinations of the deployment (see `destinations/recorded_destinations.py`): a row for each pattern of each. A
# retired destination keeps its row: so an open delivery to it differs from one to a name that was never recorded.
# `outbox_control` holds what all workers have to know; they read a row again when its version changes.
# `outbox_audience` holds each set of names once, so that an event stores a number instead of names.
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

# The columns may be null, or have a constant default: adding them changes the catalogue only, and rewrites no row.
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

# The periodic jobs that schedulers have declared (see `scheduler/store_runs.py`). A scheduler stores a run only in the
# transaction in which it advances `last_scheduled_at` from the value that it has read, so each time is stored once.
# The command line and the dashboard read the rest, without importing the application's modules.
_POSTGRES_PERIODIC = """
CREATE TABLE {periodic_table} (
    name               varchar(100) PRIMARY KEY,
    kind               varchar(10) NOT NULL,
    schedule           text NOT NULL,
    words              text NOT NULL,
    timezone           varchar(100) NOT NULL,
    paused             boolean NOT NULL DEFAULT false,
    declared_at        timestamptz NOT NULL,
    seen_at            timestamptz NOT NULL,
    scheduled_from     timestamptz NOT NULL,
    last_scheduled_at  timestamptz,
    next_run_at        timestamptz,
    requested_at       timestamptz,
    last_run_at        timestamptz,
    last_run_id        uuid,
    skipped_at         timestamptz,
    skipped_why        text,
    ended_at           timestamptz,
    ended_id           uuid,
    ended_seconds      double precision,
    ended_error        text
)
"""
_SQLITE_PERIODIC = """
CREATE TABLE {periodic_table} (
    name               TEXT PRIMARY KEY,
    kind               TEXT NOT NULL,
    schedule           TEXT NOT NULL,
    words              TEXT NOT NULL,
    timezone           TEXT NOT NULL,
    paused             INTEGER NOT NULL DEFAULT 0,
    declared_at        TEXT NOT NULL,
    seen_at            TEXT NOT NULL,
    scheduled_from     TEXT NOT NULL,
    last_scheduled_at  TEXT,
    next_run_at        TEXT,
    requested_at       TEXT,
    last_run_at        TEXT,
    last_run_id        TEXT,
    skipped_at         TEXT,
    skipped_why        TEXT,
    ended_at           TEXT,
    ended_id           TEXT,
    ended_seconds      REAL,
    ended_error        TEXT
)
"""

PERIODIC = Version(5, "the periodic jobs", postgres=(_POSTGRES_PERIODIC,), sqlite=(_SQLITE_PERIODIC,))

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
    PERIODIC,
    ORDERING,
    AUDIT,
    CONTROL,
)

# The table in which the applied versions are recorded.
HISTORY = {
    "postgres": """CREATE TABLE IF NOT EXISTS {history_table} (
        version integer PRIMARY KEY, what text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())""",
    "sqlite": """CREATE TABLE IF NOT EXISTS {history_table} (
        version INTEGER PRIMARY KEY, what TEXT NOT NULL, applied_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP)""",
}
