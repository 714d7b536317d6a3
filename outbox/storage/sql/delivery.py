"""SQL that workers run to deliver events: claim, settle, give back, renew the lease."""

from __future__ import annotations

# The columns of a claimed event, in the order of `Event.__init__`. The JSON columns are returned as text: what is
# delivered is what was emitted. Timestamps that Python can't read (such as '-infinity', written by another program) are
# returned as ones that it can: the error would otherwise hit the whole batch, and every batch after it.
CLAIMED_COLUMNS = """{id}, seq, aggregate_type, aggregate_id, event_type, ordering_key, {payload}, {headers},
    correlation_id, tenant_id, idempotency_key, attempts, max_attempts, {progress}, {due_at}, {emitted_at},
    {now}, kind, order_state"""

# The version of the recorded destinations at the time of the claim: a worker whose copy has another version reads them
# again before it delivers the events.
DESTINATIONS_VERSION = "(SELECT version FROM {control_table} WHERE name = 'destinations')"

# The first parameter is the due time from which to scan (`delivery/scan_position.py`), the second whether events whose
# lease expired may be claimed. If there is one, it is claimed alone, so that an event that kills its worker affects no
# others.
# The condition on the lease stands inside the locking SELECT: PostgreSQL evaluates it again once it has locked a row
# that another worker has claimed meanwhile.
# `= ANY (ARRAY(...))` makes the update use the primary key at any batch size.
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
    ELSE ARRAY(SELECT id FROM due) END) AND {async_commit}
RETURNING {claimed}, {destinations_version}, (SELECT bool_or(suspect) FROM due)
"""

# SQLite has one writer at a time: a SELECT and an UPDATE inside BEGIN IMMEDIATE need no row locks.
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

# The usual end: many rows, one statement. `attempts` is right already, because the claim has counted the attempt. Most
# batches have one audience, the first parameter. For a batch that has several, the second parameter is a JSON object
# with the audience of each event type.
DELIVERED = """
UPDATE {event_table}
SET status = 'delivered', delivered_at = {now}, next_attempt_at = NULL, lease_id = NULL, lease_until = NULL,
    progress = NULL, error_message = NULL, updated_at = {now}, audience = COALESCE({number}, {audience_of_type})
WHERE {ids} AND lease_id = ? AND {async_commit}
"""

# Every other outcome: how many attempts were made, when the event is due again, and how far each destination is.
# On PostgreSQL one statement writes them all: the first parameter is a JSON object with the values of each row, by its
# id. That took half the time of a statement for each row. A join with unnest(…) was as fast, but from a thousand rows
# on PostgreSQL may read the whole table for it; this always uses the primary key.
SETTLED_POSTGRES = """
UPDATE {event_table}
SET (status, attempts, next_attempt_at, progress, error_message, delivered_at, audience, order_state, lease_id,
    lease_until, updated_at) = (
    SELECT item.status, item.attempts, item.due_at, item.progress::json, item.error, CASE WHEN item.is_delivered
        THEN {now} END, item.audience, item.order_state, NULL::uuid, NULL::timestamptz, {now}
    FROM jsonb_to_record((SELECT ?::jsonb) -> id::text) AS item (status text, attempts integer, due_at timestamptz,
        progress text, error text, is_delivered boolean, audience integer, order_state text))
WHERE {ids} AND lease_id = ? AND {async_commit}
"""
SETTLED_SQLITE = """
UPDATE {event_table}
SET status = ?, attempts = ?, next_attempt_at = {moment}, progress = ?, error_message = ?,
    delivered_at = CASE WHEN ? THEN {now} END, audience = ?, order_state = ?, lease_id = NULL, lease_until = NULL,
    updated_at = {now}
WHERE id = ? AND lease_id = ? AND {async_commit}
"""

# How far an event is that is still under its lease: some of its destinations have ended.
PARTLY_SETTLED = """
UPDATE {event_table} SET progress = ?, updated_at = {now} WHERE id = ? AND lease_id = ? AND {async_commit}
"""

# Events that no destination has begun with are given back as if they had never been claimed.
RELEASED = """
UPDATE {event_table}
SET status = 'pending', attempts = attempts - 1, lease_id = NULL, lease_until = NULL, updated_at = {now}
WHERE {ids} AND lease_id = ? AND {async_commit}
"""

# One statement for all batches of a process; it returns the events that are still held. A lease that expired may be
# renewed if no other worker has claimed the event: the row still has this lease's id, and is locked meanwhile. A row
# that another transaction has locked is skipped, so that it does not delay the renewal of the others.
RENEWED = """
UPDATE {event_table}
SET lease_until = {after}
WHERE id {in_list}(SELECT id FROM {event_table} WHERE {ids} AND {leases} {skip_locked}){end} AND {async_commit}
RETURNING id
"""

# How many events are due, counted up to a cap: above it the exact number does not matter, and would take ever longer.
# (The order makes PostgreSQL use the index: else it may scan the table, past all events that wait behind others.)
COUNT_DUE = """
SELECT count(*) FROM (
    SELECT 1 FROM {event_table}
    WHERE next_attempt_at <= {now} AND (lease_until IS NULL OR lease_until <= {now})
    ORDER BY next_attempt_at
    LIMIT ?
) AS due
"""

NOW = "SELECT {now}"
