"""Version 8 of the tables: the controls of deliveries, the history of attempts, and erasure.

`outbox_attempt` has a row for each attempt that failed (see OUTBOX_ATTEMPTS). An audit entry also says how far its
action is, so that another process can stop or resume it. The row `controls` of `outbox_control` holds which
destinations are paused or throttled. `erased_at` says when an event's content was erased.

The columns may be null: adding them rewrites no row, and workers of an older version go on without them. On a large
table, creating the indexes takes a while, and emitting waits meanwhile. They can be created beforehand without that:
the statements here do nothing where the column and the indexes exist (docs/how-to/upgrading.md).
"""

from __future__ import annotations

from outbox.storage.schema_version import Version

# There is no foreign key to the events: the clean-up of an older version deletes events alone. Rows are deleted by
# their age.
_POSTGRES_ATTEMPT = """
CREATE TABLE {attempt_table} (
    event_id     uuid NOT NULL,
    id           bigint GENERATED ALWAYS AS IDENTITY,
    destination  varchar(255) NOT NULL,
    at           timestamptz NOT NULL,
    seconds      double precision NOT NULL,
    outcome      varchar(20) NOT NULL,
    http_status  integer,
    error        text,
    worker       varchar(255) NOT NULL,
    PRIMARY KEY (event_id, id)
)
"""
_SQLITE_ATTEMPT = """
CREATE TABLE {attempt_table} (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    event_id     TEXT NOT NULL,
    destination  TEXT NOT NULL,
    at           TEXT NOT NULL,
    seconds      REAL NOT NULL,
    outcome      TEXT NOT NULL,
    http_status  INTEGER,
    error        TEXT,
    worker       TEXT NOT NULL
)
"""
_ATTEMPT_INDEX = "CREATE INDEX {index_prefix}attempt_at ON {attempt_table} (at)"
_SQLITE_EVENT_INDEX = "CREATE INDEX {index_prefix}attempt_event ON {attempt_table} (event_id, id)"

# `total`: how many events matched when the action began. `position` and `last_id`: the last event that it has looked
# at, and the last that it will. `seen_at`: when its process has last reported. `stop_by`: who asked it to stop.
_POSTGRES_AUDIT_COLUMNS = """
ALTER TABLE {audit_table}
    ADD COLUMN total bigint,
    ADD COLUMN position uuid,
    ADD COLUMN last_id uuid,
    ADD COLUMN seen_at timestamptz,
    ADD COLUMN stop_by varchar(255)
"""
_SQLITE_AUDIT_COLUMNS = (
    "ALTER TABLE {audit_table} ADD COLUMN total INTEGER",
    "ALTER TABLE {audit_table} ADD COLUMN position TEXT",
    "ALTER TABLE {audit_table} ADD COLUMN last_id TEXT",
    "ALTER TABLE {audit_table} ADD COLUMN seen_at TEXT",
    "ALTER TABLE {audit_table} ADD COLUMN stop_by TEXT",
)

# For erasure, and for searches. Each holds only the events that have such a value.
_SEARCH_INDEXES = tuple(
    f"CREATE INDEX IF NOT EXISTS {{index_prefix}}{column} ON {{event_table}} ({column}, id) WHERE {column} IS NOT NULL"
    for column in ("subject", "tenant_id", "correlation_id")
)

_CONTROLS = "INSERT INTO {{control_table}} (name, version, updated_at) VALUES ('controls', 0, {now})"

CONTROL = Version(
    8,
    "control of deliveries, attempts and erasure",
    postgres=(
        _POSTGRES_ATTEMPT,
        _ATTEMPT_INDEX,
        _POSTGRES_AUDIT_COLUMNS,
        "ALTER TABLE {event_table} ADD COLUMN IF NOT EXISTS erased_at timestamptz",
        *_SEARCH_INDEXES,
        _CONTROLS.format(now="now()"),
    ),
    sqlite=(
        _SQLITE_ATTEMPT,
        _ATTEMPT_INDEX,
        _SQLITE_EVENT_INDEX,
        *_SQLITE_AUDIT_COLUMNS,
        "ALTER TABLE {event_table} ADD COLUMN erased_at TEXT",
        *_SEARCH_INDEXES,
        _CONTROLS.format(now="CURRENT_TIMESTAMP"),
    ),
)
