"""SQL for operators: what they do to events, the audit log, and the clean-up of what has ended.

Each statement that changes events only changes those that are still in the state that it is for (`status.py`), and
returns their ids.
"""

from __future__ import annotations

# An event whose content was erased is neither retried nor replayed: a receiver would get it with other content.
RETRY = """
UPDATE {event_table}
SET status = 'pending', attempts = 0, next_attempt_at = {now}, progress = ?, updated_at = {now},
    order_state = CASE WHEN ordering_key IS NOT NULL THEN 'holds' END
WHERE id = ? AND {is_failed} AND erased_at IS NULL
RETURNING id
"""
# An event that waits for its next attempt is tried now. One that is parked behind an earlier event of its key is not.
RETRY_NOW = """
UPDATE {event_table}
SET next_attempt_at = {now}, progress = ?, updated_at = {now}
WHERE id = ? AND next_attempt_at > {now} AND next_attempt_at < {latest} AND lease_id IS NULL AND progress IS NOT NULL
RETURNING id
"""
# An event under a lease is left to its worker, which is delivering it right now.
FAIL_BY_HAND = """
UPDATE {event_table}
SET status = 'failed', next_attempt_at = NULL, lease_id = NULL, lease_until = NULL, updated_at = {now},
    error_message = CAST(? AS text) || COALESCE('; ' || error_message, ''),
    order_state = CASE WHEN order_state IS NOT NULL THEN 'holds' END
WHERE {ids} AND {is_unfinished} AND (lease_until IS NULL OR lease_until <= {now})
RETURNING id
"""
DELETE_BY_HAND = "DELETE FROM {event_table} WHERE {ids} AND {has_ended} RETURNING id"
# A replayed event was delivered before, in the order of its key. Now it neither waits nor holds back others.
REPLAY = """
UPDATE {event_table}
SET status = 'pending', attempts = 0, next_attempt_at = {now}, delivered_at = NULL, progress = ?,
    error_message = NULL, order_state = NULL, updated_at = {now}
WHERE {ids} AND {is_delivered} AND erased_at IS NULL
RETURNING id
"""
# A failed event then no longer holds back the later events of its key.
SKIP = """
UPDATE {event_table} SET order_state = NULL, updated_at = {now}
WHERE {ids} AND {is_failed} AND order_state IS NOT NULL
RETURNING id
"""

# The same for the destinations where an event has failed, while others still try it. An event that a worker is
# delivering right now is not changed: the worker would overwrite the column `progress`.
SKIP_WHERE_FAILED = """
UPDATE {event_table} SET progress = ?, updated_at = {now}
WHERE id = ? AND {is_unfinished} AND order_state IS NOT NULL AND (lease_until IS NULL OR lease_until <= {now})
RETURNING id
"""

AUDIT_BEGIN = """
INSERT INTO {audit_table} (id, at, who, claimed, via, action, filters, parameters, affected, total, last_id, seen_at)
VALUES (?, {now}, ?, ?, ?, ?, ?, ?, 0, ?, ?, {now})
"""
# Run with each batch: how many events it has changed, and the last one that it has read. It returns the operator who
# has asked the action to stop.
AUDIT_ADD = """
UPDATE {audit_table} SET affected = affected + ?, position = COALESCE(?, position), seen_at = {now} WHERE id = ?
RETURNING stop_by
"""
AUDIT_STOP = """
UPDATE {audit_table} SET stop_by = ? WHERE id = ? AND ended_at IS NULL AND stop_by IS NULL AND total IS NOT NULL
"""
# A row for each batch: to append to one list of ids would write the whole list again with each batch.
AUDIT_BATCH = "INSERT INTO {audit_batch_table} (audit_id, number, at, ids) VALUES (?, ?, {now}, ?)"
AUDIT_END = "UPDATE {audit_table} SET ended_at = {now}, outcome = ?, cause = ? WHERE id = ?"

# Every event type and actor in the table, found by stepping from one to the next in the unique index, with the kind of
# one of its rows. (An event type and an actor with the same name are one name here.)
NAMES = """
WITH RECURSIVE step AS (
    SELECT (SELECT min(event_type) FROM {event_table}) AS type, 1 AS number
    UNION ALL
    SELECT (SELECT min(event_type) FROM {event_table} WHERE event_type > step.type), number + 1
    FROM step WHERE step.type IS NOT NULL AND number < ?
)
SELECT type, (SELECT kind FROM {event_table} WHERE event_type = step.type ORDER BY idempotency_key LIMIT 1)
FROM step WHERE type IS NOT NULL
"""

# The clean-up walks along the primary key, which begins with the time of creation, so it needs no index of its own.
# When an event ended is known from the database's timestamps: a wrong clock in the id can only delay its deletion.
# A failed event stays while later events of its key wait behind it, or will: no worker may have claimed them yet. (As
# scalar subqueries they run for such events only; PostgreSQL would turn NOT EXISTS into a scan of the whole table. The
# order makes it use an index, though most rows may have one key.)
ENDED = """{has_ended} AND COALESCE(delivered_at, updated_at) < {before} AND id > ? AND id < ?
    AND (order_state IS NULL OR delivered_at IS NOT NULL OR (
        SELECT seq FROM {waiting_table} AS waiting
        WHERE waiting.ordering_key = {event_table}.ordering_key ORDER BY destination, seq LIMIT 1) IS NULL
    AND (
        SELECT seq FROM {event_table} AS later
        WHERE later.ordering_key = {event_table}.ordering_key AND later.seq > {event_table}.seq AND {can_hold}
            AND {is_unfinished} ORDER BY seq LIMIT 1) IS NULL)"""
DELETE_ENDED = """
DELETE FROM {event_table}
WHERE id {in_list}(SELECT id FROM {event_table} WHERE {ended} ORDER BY id LIMIT ? {skip_locked}){end}
RETURNING id
"""
COUNT_ENDED = "SELECT count(*) FROM (SELECT 1 FROM {event_table} WHERE {ended} LIMIT ?) AS ended"
FORGET_AUDIT = "DELETE FROM {audit_table} WHERE at < {before}"
FORGET_AUDIT_BATCHES = "DELETE FROM {audit_batch_table} WHERE at < {before}"
