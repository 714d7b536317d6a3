"""SQL for what operators control at run time: pauses and throttles, and events that are to be tried sooner."""

from __future__ import annotations

# Always one row: without the row `controls`, as in tables of an older version, the value is null.
CONTROLS = "SELECT (SELECT value FROM {control_table} WHERE name = 'controls'), {now}"
CONTROLS_SET = """
UPDATE {control_table} SET value = ?, version = {next_version}, updated_at = {now} WHERE name = 'controls'
"""

# Makes events that wait at one destination due sooner, some time apart, because the destination is no longer paused or
# throttled, or can be reached again. These events were never tried there, or the destination was unavailable: so a try
# that comes too early does no harm. `plan` recognises such an event by its due time, which is earlier than that of each
# of its entries.
#
# It reads a limited number of events in the order of their due times, from the given time on, and chooses a limited
# number of them. It returns how many it has changed, chosen and read, and the due times of the last chosen and the last
# read event: the next call continues there. An event whose row another transaction has locked, or that a worker has, is
# not changed. Neither is one that was changed after the given time: an earlier call has made it due, and a throttle has
# put it off again. Otherwise this would have no end.
#
# The parameters: from which due time on, until when changed, how many to read, the name of the destination four times
# (null: any that is paused), how many to choose, in how many seconds the first is due, and the seconds between two.
SOONER_POSTGRES = """
WITH near AS MATERIALIZED (
    SELECT id, next_attempt_at, progress FROM {event_table}
    WHERE next_attempt_at > {now} AND next_attempt_at >= {moment} AND next_attempt_at < {latest}
        AND lease_id IS NULL AND progress IS NOT NULL AND updated_at <= {moment}
    ORDER BY next_attempt_at
    LIMIT ?
),
chosen AS MATERIALIZED (
    SELECT id, next_attempt_at, row_number() OVER (ORDER BY next_attempt_at, id) - 1 AS number FROM near
    WHERE CASE WHEN ?::text IS NULL THEN position('"reason": "paused"' IN progress::text) > 0
        ELSE progress -> ?::text ->> 'state' = 'waiting' AND (progress -> ?::text ->> 'waits' IS NOT NULL
            OR progress -> ?::text ->> 'reason' IN ('paused', 'throttled')) END
    ORDER BY next_attempt_at, id
    LIMIT ?
),
locked AS MATERIALIZED (
    SELECT id FROM {event_table}
    WHERE id = ANY (ARRAY(SELECT id FROM chosen)) AND lease_id IS NULL AND next_attempt_at > {now}
        AND next_attempt_at < {latest}  -- another worker may just have parked it
    FOR UPDATE SKIP LOCKED
),
changed AS (
    UPDATE {event_table} AS event
    SET next_attempt_at = LEAST(event.next_attempt_at, {now} + (? + chosen.number * ?) * interval '1 second'),
        updated_at = {now}
    FROM chosen
    WHERE event.id = chosen.id AND event.id = ANY (ARRAY(SELECT id FROM locked))
    RETURNING 1
)
SELECT (SELECT count(*) FROM changed),
    (SELECT count(*) FROM chosen), (SELECT max(next_attempt_at) FROM chosen),
    (SELECT count(*) FROM near), (SELECT max(next_attempt_at) FROM near)
"""
# SQLite: what to read, and the change of one event.
NEAR_SQLITE = """
SELECT id, next_attempt_at, progress FROM {event_table}
WHERE next_attempt_at > {now} AND next_attempt_at >= {moment} AND next_attempt_at < {latest}
    AND lease_id IS NULL AND progress IS NOT NULL AND updated_at <= {moment}
ORDER BY next_attempt_at
LIMIT ?
"""
SOONER_SQLITE = """
UPDATE {event_table} SET next_attempt_at = min(next_attempt_at, {after}), updated_at = {now} WHERE id = ?
"""
# For events that were put off because of a pause, if the pause has ended since they were claimed. A parked event is not
# changed: it is due when it is released.
UNPAUSE = """
UPDATE {event_table} SET next_attempt_at = {now}, updated_at = {now}
WHERE {ids} AND lease_id IS NULL AND next_attempt_at > {now} AND next_attempt_at < {latest}
"""

# The valid leases: what workers are delivering right now.
IN_FLIGHT = """
SELECT lease_id, count(*) FROM {event_table} WHERE {is_unfinished} AND lease_until > {now}
GROUP BY lease_id
"""
