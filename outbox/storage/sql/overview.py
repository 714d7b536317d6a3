"""SQL for the overview: how many events wait, and why events failed.

The database counts, so that no row is sent to the client. Each query reads a limited number of rows.
"""

from __future__ import annotations

# The events that have not ended, for each kind: how many there are, how many are under a lease, have an expired lease,
# and are due; and when the oldest was emitted, became due, and lost its lease. They are read in no order, because
# sorting costs time, and any of them may be the oldest. Parked events are due at {latest}: COUNT_PARKED counts them.
BACKLOG = """
WITH clock AS (SELECT {moment} AS now), unfinished AS (
    SELECT kind, {due_at} AS due_at, {emitted_at} AS emitted_at, lease_until,
        lease_until IS NOT NULL AND lease_until > (SELECT now FROM clock) AS is_in_flight
    FROM (
        SELECT kind, next_attempt_at, created_at, lease_until FROM {event_table}
        WHERE {is_unfinished} AND next_attempt_at <> {latest} LIMIT ?
    ) AS waiting
), states AS (
    SELECT *, NOT is_in_flight AND due_at <= (SELECT now FROM clock) AS is_due,
        NOT is_in_flight AND lease_until IS NOT NULL AS is_expired
    FROM unfinished
)
SELECT kind, count(*), count(*) FILTER (WHERE is_in_flight), count(*) FILTER (WHERE is_expired),
    count(*) FILTER (WHERE is_due), min(emitted_at), min(due_at) FILTER (WHERE is_due),
    min(lease_until) FILTER (WHERE is_expired)
FROM states GROUP BY kind
"""

# The errors of the newest failed events, grouped by destination, the beginning of the error, and the hour since 1970:
# how many events, when the first and the last failed, the newest event, and how many events were read in all. The
# destination is empty for an event that failed before it had one.
FAILURES = """
WITH failed AS (
    SELECT CAST(id AS text) AS event_id, progress, substr(error_message, 1, ?) AS error_message, updated_at
    FROM {event_table} WHERE {is_failed} ORDER BY id DESC LIMIT ?
)
SELECT COALESCE(item.key, ''), CASE WHEN item.key IS NULL THEN error_message ELSE substr({entry_error}, 1, ?) END,
    count(*), min(updated_at), max(updated_at), max(event_id), {failed_hour},
    (SELECT count(*) FROM failed)
FROM failed LEFT JOIN {entries} AS item ON {entry_state} = 'failed'
GROUP BY 1, 2, 7
"""
