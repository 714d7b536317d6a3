"""Version 6 of the tables: the column, the index and the table for order per key.

`order_state` says whether an event holds back the later events of its ordering key. Only such events are in the index,
so looking for them takes the same time however many events wait or have ended. `outbox_waiting` has a row for each
event and each destination at which the event waits.

On a large table, creating the index takes a while, and emitting waits meanwhile. It can be created beforehand without
that: the statements here do nothing where the column and the index exist (docs/how-to/migrations.md).
"""

from __future__ import annotations

from outbox.storage.schema_version import Version

# The condition of the index. Statements that look for such events contain it word for word: otherwise neither database
# would use the index.
CAN_HOLD = "order_state IN ('holds', 'scheduled') AND delivered_at IS NULL"

_INDEX = f"""
CREATE INDEX IF NOT EXISTS {{index_prefix}}ordering ON {{event_table}} (ordering_key, seq) WHERE {CAN_HOLD}
"""

# For workers, which ask after each batch whether events were parked since they looked (`delivery/followers.py`).
_WAITING_INDEX = "CREATE INDEX {index_prefix}waiting_since ON {waiting_table} (since)"

# The primary key is in the order in which events are released: by key and destination, the earliest event first.
_POSTGRES_WAITING = """
CREATE TABLE {waiting_table} (
    ordering_key  varchar(255) NOT NULL,
    destination   varchar(255) NOT NULL,
    seq           bigint NOT NULL,
    event_id      uuid NOT NULL,
    since         timestamptz NOT NULL,
    PRIMARY KEY (ordering_key, destination, seq, event_id)
)
"""
_SQLITE_WAITING = """
CREATE TABLE {waiting_table} (
    ordering_key  TEXT NOT NULL,
    destination   TEXT NOT NULL,
    seq           INTEGER NOT NULL,
    event_id      TEXT NOT NULL,
    since         TEXT NOT NULL,
    PRIMARY KEY (ordering_key, destination, seq, event_id)
) WITHOUT ROWID
"""

ORDERING = Version(
    6,
    "order per key",
    postgres=(
        "ALTER TABLE {event_table} ADD COLUMN IF NOT EXISTS order_state varchar(10)",
        _INDEX,
        _POSTGRES_WAITING,
        _WAITING_INDEX,
    ),
    sqlite=("ALTER TABLE {event_table} ADD COLUMN order_state TEXT", _INDEX, _SQLITE_WAITING, _WAITING_INDEX),
)
