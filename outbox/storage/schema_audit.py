"""Version 7 of the tables: columns that make the audit log usable as evidence (see `telemetry/audit.py`).

The columns may be null, so adding them rewrites no row, and workers of an older version go on writing entries without
them. `outbox_audit_batch` has a row for each batch of an action, with the ids of the events that the batch has changed.
"""

from __future__ import annotations

from outbox.storage.schema_version import Version

# `claimed`: the person's name by their environment, if it differs from `who`. `via`: the command line, or the dashboard
# and the address of the browser. `parameters`: the arguments besides the filter. `outcome`, `cause`: how it ended.
_POSTGRES_COLUMNS = """
ALTER TABLE {audit_table}
    ADD COLUMN claimed varchar(255),
    ADD COLUMN via varchar(255),
    ADD COLUMN parameters json,
    ADD COLUMN outcome varchar(20),
    ADD COLUMN cause varchar(255)
"""
_SQLITE_COLUMNS = (
    "ALTER TABLE {audit_table} ADD COLUMN claimed TEXT",
    "ALTER TABLE {audit_table} ADD COLUMN via TEXT",
    "ALTER TABLE {audit_table} ADD COLUMN parameters TEXT",
    "ALTER TABLE {audit_table} ADD COLUMN outcome TEXT",
    "ALTER TABLE {audit_table} ADD COLUMN cause TEXT",
)
# There is no foreign key: the clean-up of an older version deletes entries alone, and that must go on working.
_POSTGRES_BATCH = """
CREATE TABLE {audit_batch_table} (
    audit_id  uuid NOT NULL,
    number    integer NOT NULL,
    at        timestamptz NOT NULL,
    ids       json NOT NULL,
    PRIMARY KEY (audit_id, number)
)
"""
_SQLITE_BATCH = """
CREATE TABLE {audit_batch_table} (
    audit_id  TEXT NOT NULL,
    number    INTEGER NOT NULL,
    at        TEXT NOT NULL,
    ids       TEXT NOT NULL,
    PRIMARY KEY (audit_id, number)
)
"""

AUDIT = Version(
    7,
    "evidence in the audit log",
    postgres=(_POSTGRES_COLUMNS, _POSTGRES_BATCH),
    sqlite=(*_SQLITE_COLUMNS, _SQLITE_BATCH),
)
