"""Every statement of the hot path, by name, with the reason for its shape.

They are texts, built once: building a query with Peewee costs more than running it. The templates hold what is the
same on both databases; `Statements` fills in what differs.

    {now}       the database's clock, and the only clock that decides what is due or expired
    {after}     {now} plus a parameter in seconds
    {ids}       "is one of this list of ids", the list being one parameter
    {quick}     true; and PostgreSQL does not wait for the disk when this statement commits
    ?           a parameter

Claims and what ends them are `{quick}`: losing one in a crash of the database only means delivering again. It is said
inside the statement, since a setting of the connection would reach into its owner's own commits.

Two rules hold everywhere. Whatever settles, renews or gives back an event says `AND lease_id = ?`: only the holder of
the current lease is heard, and the row count tells who was not. And no index mentions `status`, `attempts`, `lease_*`
or `updated_at`, so that on PostgreSQL a claim, a renewal and a give-back are HOT updates.
"""

from __future__ import annotations

from dataclasses import dataclass

INSERT_COLUMNS = """id, aggregate_type, aggregate_id, event_type, payload, headers, correlation_id, tenant_id,
    idempotency_key, max_attempts, status, attempts, next_attempt_at, created_at, updated_at"""

# A duplicate is no error here (an error would end a PostgreSQL transaction): it is the answer "no row". Most events are
# due at once, and for them a parameter, an expression and an answer less are a tenth of the time.
INSERT = """
INSERT INTO outbox_event ({columns})
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'pending', 0, {now}, {now}, {now})
ON CONFLICT (event_type, idempotency_key) DO NOTHING
RETURNING seq, created_at
"""
INSERT_LATER = """
INSERT INTO outbox_event ({columns})
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'pending', 0, COALESCE({moment}, {after}), {now}, {now})
ON CONFLICT (event_type, idempotency_key) DO NOTHING
RETURNING seq, created_at, next_attempt_at
"""

# Callers hand the rows over sorted by key, so that two of them with the same keys wait for each other in the same
# order and can't deadlock; the numbers are drawn before that, so that `seq` follows the order of emission. (The
# sequence is looked up once, not for each number: that took ten times as long.)
DRAW_NUMBERS = """
SELECT nextval(sequence)
FROM (SELECT pg_get_serial_sequence('outbox_event', 'seq')::regclass AS sequence OFFSET 0) AS found,
     generate_series(1, %s)
"""
# One parameter for a column, written as an array: measured against COPY into a staging table, json_to_recordset and
# psycopg's executemany it took the least time, here and in the server. The numbers of what was stored come back as one
# list: the moments are the same for nearly all of them.
INSERT_MANY = """
WITH stored AS (
    INSERT INTO outbox_event (seq, {columns}) OVERRIDING SYSTEM VALUE
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

# What a claim hands to the dispatcher. The JSON columns come as text: what is delivered is what was emitted.
CLAIMED_COLUMNS = """{id}, seq, aggregate_type, aggregate_id, event_type, ordering_key, {payload}, {headers},
    correlation_id, tenant_id, idempotency_key, attempts, max_attempts, {progress}, next_attempt_at, created_at,
    {now}"""

# The lease filter stands inside the locking SELECT: a row that another worker claims meanwhile is looked at again
# after it is locked. Whoever finds a suspect - a row whose lease ran out - takes it alone, so that an event that kills
# its worker takes no neighbours along; a parameter says whether suspects may be taken at all. The first one says where
# to begin (`delivery/front.py`).
# `= ANY (ARRAY(...))` keeps the update on the primary key at any batch size.
CLAIM_POSTGRES = """
WITH due AS MATERIALIZED (
    SELECT id, next_attempt_at, lease_id IS NOT NULL AS suspect
    FROM outbox_event
    WHERE next_attempt_at >= %s AND next_attempt_at <= {now}
        AND (lease_until IS NULL OR (%s AND lease_until <= {now}))
    ORDER BY next_attempt_at
    LIMIT %s
    FOR UPDATE SKIP LOCKED
)
UPDATE outbox_event
SET status = 'sending', attempts = attempts + 1, lease_id = %s, lease_until = {after}, updated_at = {now}
WHERE id = ANY (CASE WHEN EXISTS (SELECT FROM due WHERE suspect)
    THEN ARRAY(SELECT id FROM due WHERE suspect ORDER BY next_attempt_at LIMIT 1)
    ELSE ARRAY(SELECT id FROM due) END) AND {quick}
RETURNING {claimed}, (SELECT bool_or(suspect) FROM due)
"""

# SQLite has one writer at a time: a look and an update inside BEGIN IMMEDIATE need no row locks.
DUE_SQLITE = """
SELECT id, lease_id IS NOT NULL AS suspect
FROM outbox_event
WHERE next_attempt_at >= ? AND next_attempt_at <= {now}
    AND (lease_until IS NULL OR (? AND lease_until <= {now}))
ORDER BY next_attempt_at
LIMIT ?
"""
CLAIM_SQLITE = """
UPDATE outbox_event
SET status = 'sending', attempts = attempts + 1, lease_id = ?, lease_until = {after}, updated_at = {now}
WHERE {ids}
RETURNING {claimed}, ?
"""

# The usual end: many rows, one statement. The attempt that the claim counted is what it cost.
DELIVERED = """
UPDATE outbox_event
SET status = 'delivered', delivered_at = {now}, next_attempt_at = NULL, lease_id = NULL, lease_until = NULL,
    progress = NULL, error_message = NULL, updated_at = {now}
WHERE {ids} AND lease_id = ? AND {quick}
"""

# Every other end, row by row: what it really cost, when it is due again, and how far each destination is.
SETTLED = """
UPDATE outbox_event
SET status = ?, attempts = ?, next_attempt_at = {moment}, progress = ?, error_message = ?,
    delivered_at = CASE WHEN ? THEN {now} END, lease_id = NULL, lease_until = NULL, updated_at = {now}
WHERE id = ? AND lease_id = ? AND {quick}
"""

# What had not begun goes back as if it had never been claimed.
RELEASED = """
UPDATE outbox_event
SET status = 'pending', attempts = attempts - 1, lease_id = NULL, lease_until = NULL, updated_at = {now}
WHERE {ids} AND lease_id = ? AND {quick}
"""

# One statement for all of a process's batches; the answer is what is still held. A lease that ran out but that nobody
# took may be renewed: the row is locked meanwhile, and it still carries our id. A row that somebody else has locked
# must not hold up the others' renewal.
RENEWED = """
UPDATE outbox_event
SET lease_until = {after}
WHERE id {among}(SELECT id FROM outbox_event WHERE {ids} AND {leases} {skip_locked}){close} AND {quick}
RETURNING id
"""

# How many are due, counted up to a cap: the answer "many" is as good as a number, and costs the same at any size.
COUNT_DUE = """
SELECT count(*) FROM (
    SELECT 1 FROM outbox_event
    WHERE next_attempt_at <= {now} AND (lease_until IS NULL OR lease_until <= {now})
    LIMIT ?
) AS due
"""

# Clean-up walks the primary key, which begins with the time of creation, from `?` on: it needs no index of its own.
# The end of an event is judged by the database's timestamps, so a wrong clock in the id can only delay its deletion.
ENDED = "next_attempt_at IS NULL AND COALESCE(delivered_at, updated_at) < {before} AND id > ? AND id < ?"
DELETE_ENDED = """
DELETE FROM outbox_event
WHERE id {among}(SELECT id FROM outbox_event WHERE {ended} ORDER BY id LIMIT ? {skip_locked}){close}
RETURNING id
"""
COUNT_ENDED = "SELECT count(*) FROM (SELECT 1 FROM outbox_event WHERE {ended} LIMIT ?) AS ended"

# Failed events, found by their own partial index, and put back only if they still are.
FAILED = "next_attempt_at IS NULL AND delivered_at IS NULL"
PUT_BACK = """
UPDATE outbox_event
SET status = 'pending', attempts = 0, next_attempt_at = {now}, progress = ?, updated_at = {now}
WHERE id = ? AND {failed}
"""

# What else an operator does, each to events that are still in the state it is for. Nobody's lease is broken: what is
# being delivered right now has its own end.
FAIL_BY_HAND = """
UPDATE outbox_event
SET status = 'failed', next_attempt_at = NULL, lease_id = NULL, lease_until = NULL, updated_at = {now},
    error_message = CAST(? AS text) || COALESCE('; ' || error_message, '')
WHERE {ids} AND next_attempt_at IS NOT NULL AND (lease_until IS NULL OR lease_until <= {now})
"""
DELETE_BY_HAND = "DELETE FROM outbox_event WHERE {ids} AND next_attempt_at IS NULL"
REPLAY = """
UPDATE outbox_event
SET status = 'pending', attempts = 0, next_attempt_at = {now}, delivered_at = NULL, progress = ?,
    error_message = NULL, updated_at = {now}
WHERE {ids} AND delivered_at IS NOT NULL
"""
AUDIT_BEGIN = "INSERT INTO outbox_audit (id, at, who, action, filters, affected) VALUES (?, {now}, ?, ?, ?, 0)"
AUDIT_ADD = "UPDATE outbox_audit SET affected = affected + ? WHERE id = ?"
AUDIT_END = "UPDATE outbox_audit SET ended_at = {now} WHERE id = ?"

NOW = "SELECT {now}"

# The first one to insert goes on; another waits for its commit, and then gets no row back.
INBOX_INSERT = """
INSERT INTO inbox (message_id, handler_name, processed_at) VALUES (?, ?, {now})
ON CONFLICT (message_id, handler_name) DO NOTHING
RETURNING 1
"""
INBOX_OLD = "SELECT {row} FROM inbox WHERE processed_at < {before} ORDER BY processed_at LIMIT ?"
INBOX_DELETE = "DELETE FROM inbox WHERE {row} {among}({old} {skip_locked}){close}"
INBOX_COUNT = "SELECT count(*) FROM ({old}) AS old"

# What processes publish about themselves, every few seconds. The counts are one parameter, a JSON list, written in
# the order of the keys: two processes that publish at once wait for each other in the same order. A parcel of counts
# that the row knows already has arrived: no row is hit.
PROCESS_SEEN = """
INSERT INTO outbox_process (id, kind, host, pid, started_at, seen_at, details) VALUES (?, ?, ?, ?, {now}, {now}, ?)
ON CONFLICT (id) DO UPDATE SET seen_at = EXCLUDED.seen_at, details = EXCLUDED.details
WHERE COALESCE({parcel}, 0) < ?
"""
COUNT_WORKERS = "SELECT count(*) FROM outbox_process WHERE kind IN ('worker', 'up') AND seen_at >= {before}"
PROCESS_GONE = "DELETE FROM outbox_process WHERE id = ?"
TOTALS = """
INSERT INTO outbox_total (name, labels, value)
SELECT name, labels, value FROM {counts} WHERE true ORDER BY name, labels
ON CONFLICT (name, labels) DO UPDATE SET value = outbox_total.value + EXCLUDED.value
"""
MINUTES = """
INSERT INTO outbox_minute (minute, name, labels, value)
SELECT {minute}, name, labels, value FROM {counts} WHERE true ORDER BY name, labels
ON CONFLICT (minute, name, labels) DO UPDATE SET value = outbox_minute.value + EXCLUDED.value
"""
FORGET_PROCESSES = "DELETE FROM outbox_process WHERE seen_at < {before}"
FORGET_MINUTES = "DELETE FROM outbox_minute WHERE minute < {before}"
FORGET_AUDIT = "DELETE FROM outbox_audit WHERE at < {before}"


@dataclass(frozen=True, slots=True)
class Statements:
    """The templates above, written out for one database."""

    insert: str
    insert_later: str
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
    audit_add: str
    audit_end: str
    now: str
    inbox_insert: str
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


def _write_out(parts: dict[str, str], mark: str, **given: str) -> Statements:
    parts = parts | {"columns": INSERT_COLUMNS, "failed": FAILED}
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
        "audit_add": AUDIT_ADD,
        "audit_end": AUDIT_END,
        "now": NOW,
        "inbox_insert": INBOX_INSERT,
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


POSTGRES = _write_out(
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
        "payload": "payload::text",
        "headers": "headers::text",
        "progress": "progress::text",
        "row": "ctid",
        "parcel": "(outbox_process.details->>'parcel')::bigint",
        "counts": "json_to_recordset(?) AS item (name text, labels text, value float8)",
        "minute": "date_trunc('minute', statement_timestamp())",
        "skip_locked": "FOR UPDATE SKIP LOCKED",
        "among": "= ANY (ARRAY",
        "close": ")",
    },
    mark="%s",
    insert_many=INSERT_MANY,
    due="",
    claim=CLAIM_POSTGRES,
)

# SQLite's clock has milliseconds; written to the width of microseconds it compares with every other timestamp.
_SQLITE_TIME = "strftime('%Y-%m-%d %H:%M:%f000+00:00', 'now'{shift})"

SQLITE = _write_out(
    {
        "now": _SQLITE_TIME.format(shift=""),
        "after": _SQLITE_TIME.format(shift=", ? || ' seconds'"),
        "before": _SQLITE_TIME.format(shift=", '-' || ? || ' seconds'"),
        "moment": "?",
        "id": "id",
        "ids": "id IN (SELECT value FROM json_each(?))",
        "leases": "lease_id IN (SELECT value FROM json_each(?))",
        "quick": "true",
        "payload": "payload",
        "headers": "headers",
        "progress": "progress",
        "row": "rowid",
        "parcel": "json_extract(outbox_process.details, '$.parcel')",
        "counts": """(SELECT json_extract(value, '$.name') AS name, json_extract(value, '$.labels') AS labels,
            json_extract(value, '$.value') AS value FROM json_each(?)) AS item""",
        "minute": "strftime('%Y-%m-%d %H:%M:00.000000+00:00', 'now')",
        "skip_locked": "",
        "among": "IN ",
        "close": "",
    },
    mark="?",
    insert_many="",
    due=DUE_SQLITE,
    claim=CLAIM_SQLITE,
)
