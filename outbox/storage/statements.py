"""Every statement of the hot path, by name, with the reason for its shape.

They are texts, built once: building a query with Peewee costs more than running it. The templates hold what is the
same on both databases; `Statements` fills in what differs.

    {now}       the database's clock, and the only clock that decides what is due or expired
    {after}     {now} plus a parameter in seconds
    {ids}       "is one of this list of ids", the list being one parameter
    {quick}     true; and PostgreSQL does not wait for the disk when this statement commits
    {…_table}   a table's name (`tables.py`)
    ?           a parameter

Claims and what ends them are `{quick}`: losing one in a crash of the database only means delivering again. It is said
inside the statement, since a setting of the connection would reach into its owner's own commits.

Two rules hold everywhere. Whatever settles, renews or gives back an event says `AND lease_id = ?`: only the holder of
the current lease is heard, and the row count tells who was not. And no index mentions `status`, `attempts`, `lease_*`
or `updated_at`, so that on PostgreSQL a claim, a renewal and a give-back are HOT updates.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial

from outbox.storage import timestamp
from outbox.table_names import Tables

INSERT_COLUMNS = """id, aggregate_type, aggregate_id, event_type, payload, headers, correlation_id, tenant_id,
    idempotency_key, max_attempts, status, attempts, next_attempt_at, created_at, updated_at"""

# A duplicate is no error here (an error would end a PostgreSQL transaction): it is the answer "no row". Most events are
# due at once, and for them a parameter, an expression and an answer less are a tenth of the time.
INSERT = """
INSERT INTO {event_table} ({columns})
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'pending', 0, {now}, {now}, {now})
ON CONFLICT (event_type, idempotency_key) DO NOTHING
RETURNING seq, created_at
"""
INSERT_LATER = """
INSERT INTO {event_table} ({columns})
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'pending', 0, COALESCE({moment}, {after}), {now}, {now})
ON CONFLICT (event_type, idempotency_key) DO NOTHING
RETURNING seq, created_at, next_attempt_at
"""

# Callers hand the rows over sorted by key, so that two of them with the same keys wait for each other in the same
# order and can't deadlock; the numbers are drawn before that, so that `seq` follows the order of emission. (The
# sequence is looked up once, not for each number: that took ten times as long.) It needs USAGE on the sequence. The
# identity column would draw numbers without that right, but in the order of the insert, which is that of the keys.
# Reserving numbers with rows that are deleted again needs no right either, and took about twice as long (on a busy
# machine: 7,700 against 13,700 events/s at the median; the identity column alone 13,900).
DRAW_NUMBERS = """
SELECT nextval(sequence)
FROM (SELECT pg_get_serial_sequence('{event_table}', 'seq')::regclass AS sequence OFFSET 0) AS found,
     generate_series(1, ?)
"""
# One parameter for a column, written as an array: measured against COPY into a staging table, json_to_recordset and
# psycopg's executemany it took the least time, here and in the server. The numbers of what was stored come back as one
# list: the moments are the same for nearly all of them.
INSERT_MANY = """
WITH stored AS (
    INSERT INTO {event_table} (seq, {columns}) OVERRIDING SYSTEM VALUE
    SELECT seq, id, aggregate_type, aggregate_id, event_type, payload, headers, correlation_id, tenant_id,
        idempotency_key, max_attempts, 'pending', 0, COALESCE(due_at, {now} + due_in * interval '1 second'), {now},
        {now}
    FROM unnest(%s::bigint[], %s::uuid[], %s::text[], %s::text[], %s::text[], %s::json[], %s::json[], %s::text[],
                %s::text[], %s::text[], %s::int[], %s::timestamptz[], %s::float8[])
    AS item (seq, id, aggregate_type, aggregate_id, event_type, payload, headers, correlation_id, tenant_id,
             idempotency_key, max_attempts, due_at, due_in)
    ON CONFLICT (event_type, idempotency_key) DO NOTHING
    RETURNING seq, created_at, next_attempt_at
)
SELECT array_agg(seq), created_at, next_attempt_at FROM stored GROUP BY created_at, next_attempt_at
"""

# What a claim hands to the dispatcher. The JSON columns come as text: what is delivered is what was emitted. Moments
# that Python can't read (such as '-infinity', written by another program) come as ones that it can: the error would
# otherwise hit the whole batch, and every batch after it.
CLAIMED_COLUMNS = """{id}, seq, aggregate_type, aggregate_id, event_type, ordering_key, {payload}, {headers},
    correlation_id, tenant_id, idempotency_key, attempts, max_attempts, {progress}, {due_at}, {emitted_at},
    {now}"""

# A claim says which version of the destinations its events are to go by: a worker with another copy reads them anew.
DESTINATIONS_VERSION = "(SELECT version FROM {control_table} WHERE name = 'destinations')"

# The lease filter stands inside the locking SELECT: a row that another worker claims meanwhile is looked at again
# after it is locked. Whoever finds a suspect - a row whose lease ran out - takes it alone, so that an event that kills
# its worker takes no neighbours along; a parameter says whether suspects may be taken at all. The first one says where
# to begin (`delivery/front.py`).
# `= ANY (ARRAY(...))` keeps the update on the primary key at any batch size.
CLAIM_POSTGRES = """
WITH due AS MATERIALIZED (
    SELECT id, next_attempt_at, lease_id IS NOT NULL AS suspect
    FROM {event_table}
    WHERE next_attempt_at >= %s AND next_attempt_at <= {now}
        AND (lease_until IS NULL OR (%s AND lease_until <= {now}))
    ORDER BY next_attempt_at
    LIMIT %s
    FOR UPDATE SKIP LOCKED
)
UPDATE {event_table}
SET status = 'sending', attempts = attempts + 1, lease_id = %s, lease_until = {after}, updated_at = {now}
WHERE id = ANY (CASE WHEN EXISTS (SELECT FROM due WHERE suspect)
    THEN ARRAY(SELECT id FROM due WHERE suspect ORDER BY next_attempt_at LIMIT 1)
    ELSE ARRAY(SELECT id FROM due) END) AND {quick}
RETURNING {claimed}, {destinations_version}, (SELECT bool_or(suspect) FROM due)
"""

# SQLite has one writer at a time: a look and an update inside BEGIN IMMEDIATE need no row locks.
DUE_SQLITE = """
SELECT id, lease_id IS NOT NULL AS suspect
FROM {event_table}
WHERE next_attempt_at >= ? AND next_attempt_at <= {now}
    AND (lease_until IS NULL OR (? AND lease_until <= {now}))
ORDER BY next_attempt_at
LIMIT ?
"""
CLAIM_SQLITE = """
UPDATE {event_table}
SET status = 'sending', attempts = attempts + 1, lease_id = ?, lease_until = {after}, updated_at = {now}
WHERE {ids}
RETURNING {claimed}, {destinations_version}, ?
"""

# The usual end: many rows, one statement. The attempt that the claim counted is what it cost. Most batches have one
# audience; for one that has several, the second parameter is a JSON object with the audience of each event type.
DELIVERED = """
UPDATE {event_table}
SET status = 'delivered', delivered_at = {now}, next_attempt_at = NULL, lease_id = NULL, lease_until = NULL,
    progress = NULL, error_message = NULL, updated_at = {now}, audience = COALESCE({number}, {audience_of_type})
WHERE {ids} AND lease_id = ? AND {quick}
"""

# Every other end, row by row: what it really cost, when it is due again, and how far each destination is.
SETTLED = """
UPDATE {event_table}
SET status = ?, attempts = ?, next_attempt_at = {moment}, progress = ?, error_message = ?,
    delivered_at = CASE WHEN ? THEN {now} END, audience = ?, lease_id = NULL, lease_until = NULL, updated_at = {now}
WHERE id = ? AND lease_id = ? AND {quick}
"""

# What had not begun goes back as if it had never been claimed.
RELEASED = """
UPDATE {event_table}
SET status = 'pending', attempts = attempts - 1, lease_id = NULL, lease_until = NULL, updated_at = {now}
WHERE {ids} AND lease_id = ? AND {quick}
"""

# One statement for all of a process's batches; the answer is what is still held. A lease that ran out but that nobody
# took may be renewed: the row is locked meanwhile, and it still carries our id. A row that somebody else has locked
# must not hold up the others' renewal.
RENEWED = """
UPDATE {event_table}
SET lease_until = {after}
WHERE id {among}(SELECT id FROM {event_table} WHERE {ids} AND {leases} {skip_locked}){close} AND {quick}
RETURNING id
"""

# How many are due, counted up to a cap: the answer "many" is as good as a number, and costs the same at any size.
COUNT_DUE = """
SELECT count(*) FROM (
    SELECT 1 FROM {event_table}
    WHERE next_attempt_at <= {now} AND (lease_until IS NULL OR lease_until <= {now})
    LIMIT ?
) AS due
"""

# Clean-up walks the primary key, which begins with the time of creation, from `?` on: it needs no index of its own.
# The end of an event is judged by the database's timestamps, so a wrong clock in the id can only delay its deletion.
ENDED = "next_attempt_at IS NULL AND COALESCE(delivered_at, updated_at) < {before} AND id > ? AND id < ?"
DELETE_ENDED = """
DELETE FROM {event_table}
WHERE id {among}(SELECT id FROM {event_table} WHERE {ended} ORDER BY id LIMIT ? {skip_locked}){close}
RETURNING id
"""
COUNT_ENDED = "SELECT count(*) FROM (SELECT 1 FROM {event_table} WHERE {ended} LIMIT ?) AS ended"

# Failed events, found by their own partial index, and put back only if they still are.
FAILED = "next_attempt_at IS NULL AND delivered_at IS NULL"
PUT_BACK = """
UPDATE {event_table}
SET status = 'pending', attempts = 0, next_attempt_at = {now}, progress = ?, updated_at = {now}
WHERE id = ? AND {failed}
"""

# What else an operator does, each to events that are still in the state it is for. Nobody's lease is broken: what is
# being delivered right now has its own end.
FAIL_BY_HAND = """
UPDATE {event_table}
SET status = 'failed', next_attempt_at = NULL, lease_id = NULL, lease_until = NULL, updated_at = {now},
    error_message = CAST(? AS text) || COALESCE('; ' || error_message, '')
WHERE {ids} AND next_attempt_at IS NOT NULL AND (lease_until IS NULL OR lease_until <= {now})
"""
DELETE_BY_HAND = "DELETE FROM {event_table} WHERE {ids} AND next_attempt_at IS NULL"
REPLAY = """
UPDATE {event_table}
SET status = 'pending', attempts = 0, next_attempt_at = {now}, delivered_at = NULL, progress = ?,
    error_message = NULL, updated_at = {now}
WHERE {ids} AND delivered_at IS NOT NULL
"""
AUDIT_BEGIN = "INSERT INTO {audit_table} (id, at, who, action, filters, affected) VALUES (?, {now}, ?, ?, ?, 0)"
AUDIT_NOTE = """
INSERT INTO {audit_table} (id, at, who, action, filters, affected, ended_at) VALUES (?, {now}, ?, ?, ?, 0, {now})
"""
AUDIT_ADD = "UPDATE {audit_table} SET affected = affected + ? WHERE id = ?"
AUDIT_END = "UPDATE {audit_table} SET ended_at = {now} WHERE id = ?"

NOW = "SELECT {now}"

# Every type there is, found by stepping from one to the next in the unique index.
EVENT_TYPES = """
WITH RECURSIVE step AS (
    SELECT (SELECT min(event_type) FROM {event_table}) AS type
    UNION ALL
    SELECT (SELECT min(event_type) FROM {event_table} WHERE event_type > step.type)
    FROM step WHERE step.type IS NOT NULL
)
SELECT type FROM step WHERE type IS NOT NULL
"""

# The destinations of the deployment. Whoever changes them holds the lock on their version, so that recordings come one
# after another. The version changes when the answer to "which names want this type?" may have changed.
DESTINATIONS = """
SELECT control.version, destination.name, destination.pattern, destination.retired_at IS NOT NULL,
    destination.retired_by, destination.replaced_by, destination.seen_at >= {before}
FROM {control_table} AS control LEFT JOIN {destination_table} AS destination ON true
WHERE control.name = 'destinations'
ORDER BY destination.name, destination.pattern
"""
# SQLite has no row locks: there a write takes the only write lock.
DESTINATIONS_LOCK_POSTGRES = "SELECT version FROM {control_table} WHERE name = 'destinations' FOR UPDATE"
DESTINATIONS_LOCK_SQLITE = "UPDATE {control_table} SET version = version WHERE name = 'destinations'"
DESTINATIONS_CHANGED = """
UPDATE {control_table} SET version = {next_version}, updated_at = {now} WHERE name = 'destinations'
"""
DESTINATION_RECORD = """
INSERT INTO {destination_table} (name, pattern, recorded_at, seen_at, checked_at) VALUES (?, ?, {now}, {now}, {now})
ON CONFLICT (name, pattern) DO UPDATE
SET seen_at = EXCLUDED.seen_at, absent_seconds = 0, retired_at = NULL, retired_by = NULL, replaced_by = NULL
"""
# A worker that ends has its names count as absent soon, unless another one refreshes them meanwhile.
DESTINATION_LEAVE = """
UPDATE {destination_table} SET seen_at = {before} WHERE name = ? AND retired_at IS NULL
"""
# Workers have the name, and for a while none of them has had this pattern.
DESTINATION_NARROW = """
DELETE FROM {destination_table}
WHERE name = ? AND retired_at IS NULL AND seen_at < {before}
"""
DESTINATION_RETIRE = """
UPDATE {destination_table} SET retired_at = {now}, retired_by = ?, replaced_by = ?
WHERE name = ? AND retired_at IS NULL
"""
# A name that is gone, and was never recorded: events from before there was this table may wait for it.
DESTINATION_RETIRE_UNRECORDED = """
INSERT INTO {destination_table}
    (name, pattern, recorded_at, seen_at, checked_at, retired_at, retired_by, replaced_by)
VALUES (?, '*', {now}, {now}, {now}, {now}, ?, ?)
"""
DESTINATION_LINK = "UPDATE {destination_table} SET replaced_by = ? WHERE name = ? AND retired_at IS NOT NULL"
# Time during which no worker ran does not count: only if a worker has refreshed anything since the last check, and not
# more than the parameter.
DESTINATION_ABSENT = """
UPDATE {destination_table}
SET absent_seconds = CASE
        WHEN seen_at >= checked_at THEN 0
        WHEN EXISTS (SELECT 1 FROM {destination_table} AS other WHERE other.seen_at > other.checked_at)
        THEN absent_seconds + {checked_ago}
        ELSE absent_seconds END,
    checked_at = {now}
WHERE retired_at IS NULL
"""
DESTINATIONS_EXPIRED = """
SELECT name FROM {destination_table} WHERE retired_at IS NULL
GROUP BY name HAVING min(absent_seconds) >= ? ORDER BY name
"""
AUDIENCE_FIND = "SELECT id FROM {audience_table} WHERE digest = ?"
AUDIENCE_ADD = "INSERT INTO {audience_table} (digest, names) VALUES (?, ?) ON CONFLICT (digest) DO NOTHING"
AUDIENCE_NAMES = "SELECT names FROM {audience_table} WHERE id = ?"

# The first one to insert goes on; another waits for its commit, and then gets no row back.
INBOX_INSERT = """
INSERT INTO {inbox_table} (message_id, handler_name, processed_at) VALUES (?, ?, {distinct_now})
ON CONFLICT (message_id, handler_name) DO NOTHING
RETURNING {version}
"""
# The row that this very insert wrote, not the one of a rival that has come since. It is asked for only after a handler
# has raised: it is there if the handler has committed by itself.
INBOX_TAKE_BACK = "DELETE FROM {inbox_table} WHERE message_id = ? AND handler_name = ? AND {version} = ? RETURNING 1"
INBOX_OLD = "SELECT {row} FROM {inbox_table} WHERE processed_at < {before} ORDER BY processed_at LIMIT ?"
INBOX_DELETE = "DELETE FROM {inbox_table} WHERE {row} {among}({old} {skip_locked}){close}"
INBOX_COUNT = "SELECT count(*) FROM ({old}) AS old"

# What processes publish about themselves, every few seconds. The counts are one parameter, a JSON list, written in
# the order of the keys: two processes that publish at once wait for each other in the same order. A parcel of counts
# that the row knows already has arrived: no row is hit.
PROCESS_SEEN = """
INSERT INTO {process_table} (id, kind, host, pid, started_at, seen_at, details) VALUES (?, ?, ?, ?, {now}, {now}, ?)
ON CONFLICT (id) DO UPDATE SET seen_at = EXCLUDED.seen_at, details = EXCLUDED.details
WHERE COALESCE({parcel}, 0) < ?
"""
COUNT_WORKERS = "SELECT count(*) FROM {process_table} WHERE kind IN ('worker', 'up') AND seen_at >= {before}"
PROCESS_GONE = "DELETE FROM {process_table} WHERE id = ?"
TOTALS = """
INSERT INTO {total_table} (name, labels, value)
SELECT name, labels, value FROM {counts} WHERE true ORDER BY name, labels
ON CONFLICT (name, labels) DO UPDATE SET value = {total_table}.value + EXCLUDED.value
"""
MINUTES = """
INSERT INTO {minute_table} (minute, name, labels, value)
SELECT {minute}, name, labels, value FROM {counts} WHERE true ORDER BY name, labels
ON CONFLICT (minute, name, labels) DO UPDATE SET value = {minute_table}.value + EXCLUDED.value
"""
FORGET_PROCESSES = "DELETE FROM {process_table} WHERE seen_at < {before}"
FORGET_MINUTES = "DELETE FROM {minute_table} WHERE minute < {before}"
FORGET_AUDIT = "DELETE FROM {audit_table} WHERE at < {before}"


@dataclass(frozen=True, slots=True)
class Statements:
    """The templates above, written out for one database."""

    insert: str
    insert_later: str
    draw_numbers: str
    insert_many: str
    due: str
    claim: str
    delivered: str
    settled: str
    released: str
    renewed: str
    count_due: str
    delete_ended: str
    count_ended: str
    put_back: str
    fail_by_hand: str
    delete_by_hand: str
    replay: str
    audit_begin: str
    audit_note: str
    audit_add: str
    audit_end: str
    now: str
    destinations: str
    destinations_lock: str
    destinations_changed: str
    destination_record: str
    destination_leave: str
    destination_narrow: str
    destination_retire: str
    destination_retire_unrecorded: str
    destination_link: str
    destination_absent: str
    destinations_expired: str
    audience_find: str
    audience_add: str
    audience_names: str
    event_types: str
    inbox_insert: str
    inbox_take_back: str
    inbox_delete: str
    inbox_count: str
    process_seen: str
    process_gone: str
    count_workers: str
    totals: str
    minutes: str
    forget_processes: str
    forget_minutes: str
    forget_audit: str


def _write_out(parts: dict[str, str], tables: Tables, mark: str, **given: str) -> Statements:
    parts = {**parts, **tables.placeholders, "columns": INSERT_COLUMNS, "failed": FAILED}
    parts["parcel"] = parts["parcel"].format(**parts)
    parts["destinations_version"] = DESTINATIONS_VERSION.format(**parts)
    parts["claimed"] = CLAIMED_COLUMNS.format(**parts)
    parts["ended"] = ENDED.format(**parts)
    parts["old"] = INBOX_OLD.format(**parts)
    shared = {
        "insert": INSERT,
        "insert_later": INSERT_LATER,
        "delivered": DELIVERED,
        "settled": SETTLED,
        "released": RELEASED,
        "renewed": RENEWED,
        "count_due": COUNT_DUE,
        "delete_ended": DELETE_ENDED,
        "count_ended": COUNT_ENDED,
        "put_back": PUT_BACK,
        "fail_by_hand": FAIL_BY_HAND,
        "delete_by_hand": DELETE_BY_HAND,
        "replay": REPLAY,
        "audit_begin": AUDIT_BEGIN,
        "audit_note": AUDIT_NOTE,
        "audit_add": AUDIT_ADD,
        "audit_end": AUDIT_END,
        "now": NOW,
        "destinations": DESTINATIONS,
        "destinations_changed": DESTINATIONS_CHANGED,
        "destination_record": DESTINATION_RECORD,
        "destination_leave": DESTINATION_LEAVE,
        "destination_narrow": DESTINATION_NARROW,
        "destination_retire": DESTINATION_RETIRE,
        "destination_retire_unrecorded": DESTINATION_RETIRE_UNRECORDED,
        "destination_link": DESTINATION_LINK,
        "destination_absent": DESTINATION_ABSENT,
        "destinations_expired": DESTINATIONS_EXPIRED,
        "audience_find": AUDIENCE_FIND,
        "audience_add": AUDIENCE_ADD,
        "audience_names": AUDIENCE_NAMES,
        "event_types": EVENT_TYPES,
        "inbox_insert": INBOX_INSERT,
        "inbox_take_back": INBOX_TAKE_BACK,
        "inbox_delete": INBOX_DELETE,
        "inbox_count": INBOX_COUNT,
        "process_seen": PROCESS_SEEN,
        "process_gone": PROCESS_GONE,
        "count_workers": COUNT_WORKERS,
        "totals": TOTALS,
        "minutes": MINUTES,
        "forget_processes": FORGET_PROCESSES,
        "forget_minutes": FORGET_MINUTES,
        "forget_audit": FORGET_AUDIT,
    }
    return Statements(**{name: text.format(**parts).replace("?", mark) for name, text in (shared | given).items()})


_EARLIEST, _LATEST = (f"timestamptz '{timestamp.to_text(moment)}'" for moment in (timestamp.EARLIEST, timestamp.LATEST))

_on_postgres = partial(
    _write_out,
    {
        # Stable within a statement, so an index can be searched by it; moves within a transaction, unlike now().
        "now": "statement_timestamp()",
        "after": "(statement_timestamp() + ? * interval '1 second')",
        "before": "(statement_timestamp() - ? * interval '1 second')",
        "moment": "?::timestamptz",
        "id": "id::text",
        "ids": "id = ANY (?::uuid[])",
        "leases": "lease_id = ANY (?::uuid[])",
        # As a subquery it runs once, not for every row.
        "quick": "(SELECT set_config('synchronous_commit', 'off', true)) IS NOT NULL",
        "due_at": f"GREATEST(next_attempt_at, {_EARLIEST})",
        "emitted_at": f"LEAST(GREATEST(created_at, {_EARLIEST}), {_LATEST})",
        "payload": "payload::text",
        "headers": "headers::text",
        "progress": "progress::text",
        "row": "ctid",
        # The transaction that wrote a row.
        "version": "xmin::text",
        "distinct_now": "statement_timestamp()",
        "parcel": "({process_table}.details->>'parcel')::bigint",
        "counts": "json_to_recordset(?) AS item (name text, labels text, value float8)",
        "minute": "date_trunc('minute', statement_timestamp())",
        "number": "?::integer",
        # As a subquery the object is parsed once, not for every row.
        "audience_of_type": "((SELECT ?::jsonb) ->> event_type)::integer",
        # By the clock, so that a number never comes again: after a failover, or when the row was restored by hand.
        "next_version": "GREATEST(version + 1, (EXTRACT(EPOCH FROM statement_timestamp()) * 1000000)::bigint)",
        "checked_ago": "LEAST(EXTRACT(EPOCH FROM statement_timestamp() - checked_at), ?)",
        "skip_locked": "FOR UPDATE SKIP LOCKED",
        "among": "= ANY (ARRAY",
        "close": ")",
    },
    mark="%s",
    draw_numbers=DRAW_NUMBERS,
    insert_many=INSERT_MANY,
    due="",
    claim=CLAIM_POSTGRES,
    destinations_lock=DESTINATIONS_LOCK_POSTGRES,
)

# SQLite's clock has milliseconds; written to the width of microseconds it compares with every other timestamp.
_SQLITE_TIME = "strftime('%Y-%m-%d %H:%M:%f000+00:00', 'now'{shift})"

_on_sqlite = partial(
    _write_out,
    {
        "now": _SQLITE_TIME.format(shift=""),
        "after": _SQLITE_TIME.format(shift=", ? || ' seconds'"),
        "before": _SQLITE_TIME.format(shift=", '-' || ? || ' seconds'"),
        "moment": "?",
        "id": "id",
        "ids": "id IN (SELECT value FROM json_each(?))",
        "leases": "lease_id IN (SELECT value FROM json_each(?))",
        "quick": "true",
        "due_at": "next_attempt_at",
        "emitted_at": "created_at",
        "payload": "payload",
        "headers": "headers",
        "progress": "progress",
        "row": "rowid",
        # SQLite keeps no such thing. Within a millisecond two rows are told apart by random microseconds.
        "version": "rowid || ' ' || processed_at",
        "distinct_now": "strftime('%Y-%m-%d %H:%M:%f', 'now') || printf('%03d+00:00', abs(random() % 1000))",
        "parcel": "json_extract({process_table}.details, '$.parcel')",
        "counts": """(SELECT json_extract(value, '$.name') AS name, json_extract(value, '$.labels') AS labels,
            json_extract(value, '$.value') AS value FROM json_each(?)) AS item""",
        "minute": "strftime('%Y-%m-%d %H:%M:00.000000+00:00', 'now')",
        "number": "?",
        "audience_of_type": "(SELECT entry.value FROM json_each(?) AS entry WHERE entry.key = event_type)",
        "next_version": "MAX(version + 1, CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER))",
        "checked_ago": "MIN((julianday('now') - julianday(checked_at)) * 86400, ?)",
        "skip_locked": "",
        "among": "IN ",
        "close": "",
    },
    mark="?",
    draw_numbers="",
    insert_many="",
    due=DUE_SQLITE,
    claim=CLAIM_SQLITE,
    destinations_lock=DESTINATIONS_LOCK_SQLITE,
)


@cache
def postgres(tables: Tables) -> Statements:
    """Return the statements for PostgreSQL with these names of tables, written out once."""
    return _on_postgres(tables=tables)


@cache
def sqlite(tables: Tables) -> Statements:
    """Return the statements for SQLite with these names of tables, written out once."""
    return _on_sqlite(tables=tables)


POSTGRES, SQLITE = postgres(Tables()), sqlite(Tables())
