"""SQL for order per key: find what holds an event back, record where events wait, and make them due again.

`{pairs}` stands for two parameters as a table `item` of keys and destinations. `{can_hold}` is the condition of the
index (`storage/schema_ordering.py`). Usually no event waits at all: so a statement first evaluates `{any_waits}`, once,
and if it is false does not look up each key.
"""

from __future__ import annotations

# The events that may hold back others, for each of some keys and between two numbers:
#
# - The earliest events that hold back later ones. A scheduled event holds them back once it is due. The events of the
#   asking batch are left out, because the batch knows them. For an event that a worker has, it also returns how long
#   ago it was claimed (renewing a lease does not change `updated_at`). For an event that is due it returns 0: most
#   likely another worker has claimed it in a transaction that is not committed yet.
# - For some destinations, the first event that waits there. No later event may overtake it, even if the event that it
#   waited for has just ended.
#
# One statement reads both, so that they are consistent: an event that is parked or released meanwhile is in exactly one
# of the two. The parameters are the keys; for each key the number below which, and for all keys the number above which,
# events are searched; the lease of the asking batch; how many events of the first kind to return for each key; and the
# names of the destinations.
EARLIER_POSTGRES = """
SELECT item.key, found.*
FROM unnest(?::text[], ?::bigint[]) AS item (key, below) CROSS JOIN LATERAL (
    (
        SELECT seq, event_type, {progress}, {has_ended},
            CASE WHEN lease_until > {now} THEN {seconds_since_update}
                WHEN lease_id IS NULL AND next_attempt_at <= {now} THEN 0 END, NULL::text
        FROM {event_table}
        WHERE ordering_key = item.key AND seq > ? AND seq < item.below AND {can_hold}
            AND (order_state = 'holds' OR next_attempt_at <= {now}) AND lease_id IS DISTINCT FROM ?::uuid
        ORDER BY seq
        LIMIT ?
    )
    UNION ALL
    (
        SELECT first.seq, NULL, NULL, NULL, NULL, name
        FROM unnest(?::text[]) AS name CROSS JOIN LATERAL (
            SELECT seq FROM {waiting_table}
            WHERE ordering_key = item.key AND destination = name
            ORDER BY seq  -- so that PostgreSQL uses the primary key, though most rows may have one key
            LIMIT 1
        ) AS first
        WHERE {any_waits}
    )
) AS found
"""
# SQLite has no LATERAL: one key at a time.
EARLIER_SQLITE = """
SELECT * FROM (
    SELECT ordering_key, seq, event_type, {progress}, {has_ended},
        CASE WHEN lease_until > {now} THEN {seconds_since_update}
            WHEN lease_id IS NULL AND next_attempt_at <= {now} THEN 0 END, NULL
    FROM {event_table}
    WHERE ordering_key = ? AND seq > ? AND seq < ? AND {can_hold}
        AND (order_state = 'holds' OR next_attempt_at <= {now}) AND lease_id IS NOT ?
    ORDER BY seq
    LIMIT ?
)
UNION ALL
SELECT key, seq, NULL, NULL, NULL, NULL, name FROM (
    SELECT ? AS key, value AS name,
        (SELECT min(seq) FROM {waiting_table} WHERE ordering_key = ? AND destination = value) AS seq
    FROM json_each(?)
)
WHERE seq IS NOT NULL
"""

# For an event that waits at all destinations that it was claimed for, and was not tried. The row becomes as it was
# before the claim, but the event is due only when it is released.
PARKED = """
UPDATE {event_table}
SET status = 'pending', attempts = attempts - 1, next_attempt_at = {latest}, order_state = 'waits', lease_id = NULL,
    lease_until = NULL, updated_at = {now}
WHERE {ids} AND lease_id = ? AND {async_commit}
"""
# Run in the transaction that has settled the events: they wait at these destinations, and are parked unless something
# else is left to do for them. An existing row does not change: it says since when the event waits.
WAIT_POSTGRES = """
INSERT INTO {waiting_table} (ordering_key, destination, seq, event_id, since)
SELECT event.ordering_key, item.destination, event.seq, event.id, {now}
FROM unnest(?::uuid[], ?::text[]) AS item (id, destination) JOIN {event_table} AS event ON event.id = item.id
WHERE event.lease_id IS NULL AND {is_unfinished}
ON CONFLICT (ordering_key, destination, seq, event_id) DO NOTHING
"""
WAIT_SQLITE = """
INSERT INTO {waiting_table} (ordering_key, destination, seq, event_id, since)
SELECT event.ordering_key, item.destination, event.seq, event.id, {now}
FROM (
    SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS destination FROM json_each(?)
) AS item JOIN {event_table} AS event ON event.id = item.id
WHERE event.lease_id IS NULL AND {is_unfinished}
ON CONFLICT (ordering_key, destination, seq, event_id) DO NOTHING
"""

# Returns which of these events wait at which of these destinations.
RECORDED_WAITS_POSTGRES = """
SELECT waiting.event_id, waiting.destination
FROM unnest(?::text[], ?::text[], ?::bigint[], ?::uuid[]) AS item (key, destination, seq, event_id)
JOIN {waiting_table} AS waiting ON waiting.ordering_key = item.key AND waiting.destination = item.destination
    AND waiting.seq = item.seq AND waiting.event_id = item.event_id
"""
RECORDED_WAITS_SQLITE = """
SELECT event_id, destination FROM json_each(?) AS item JOIN {waiting_table}
    ON ordering_key = json_extract(value, '$[0]') AND destination = json_extract(value, '$[1]')
    AND seq = json_extract(value, '$[2]') AND event_id = json_extract(value, '$[3]')
"""

# The largest value is always read from the index. In a prepared statement PostgreSQL does not know the parameter: with
# EXISTS it scanned the table, for 2 ms with 50,000 rows.
WAITS_SINCE = "SELECT COALESCE((SELECT max(since) FROM {waiting_table}) >= {moment}, false)"
# The version of the recorded destinations comes with it: a worker that has parked events finds out whether there are
# other destinations by now.
FIRST_WAITING = """
SELECT item.key, item.destination, (
    SELECT min(seq) FROM {waiting_table} WHERE ordering_key = item.key AND destination = item.destination
), {destinations_version}
FROM {pairs}
"""
# The destinations at which events of a key wait; and some pairs of key and destination after a given pair. The pairs
# are found by stepping from one to the next in the primary key, because thousands of events may wait behind one.
WAITING_DESTINATIONS = "SELECT DISTINCT destination FROM {waiting_table} WHERE ordering_key = ?"
WAITING_PAIRS_POSTGRES = """
WITH RECURSIVE pair AS (
    (SELECT ordering_key, destination FROM {waiting_table} WHERE (ordering_key, destination) > (?, ?)
     ORDER BY ordering_key, destination LIMIT 1)
    UNION ALL
    SELECT following.ordering_key, following.destination FROM pair CROSS JOIN LATERAL (
        SELECT ordering_key, destination FROM {waiting_table} AS later
        WHERE (later.ordering_key, later.destination) > (pair.ordering_key, pair.destination)
        ORDER BY ordering_key, destination LIMIT 1
    ) AS following
)
SELECT ordering_key, destination FROM pair LIMIT ?
"""
WAITING_PAIRS_SQLITE = """
SELECT DISTINCT ordering_key, destination FROM {waiting_table} WHERE (ordering_key, destination) > (?, ?)
ORDER BY ordering_key, destination LIMIT ?
"""

# For operators: some pairs after a given pair, each with its first waiting event; found by stepping, too. On SQLite a
# pair is a JSON array, because a recursive query there can take one value from a subquery, but not a row.
BLOCKED_PAIRS_POSTGRES = """
WITH RECURSIVE pair AS (
    (SELECT ordering_key, destination, seq, since FROM {waiting_table} WHERE (ordering_key, destination) > (?, ?)
     ORDER BY ordering_key, destination, seq, event_id LIMIT 1)
    UNION ALL
    SELECT following.* FROM pair CROSS JOIN LATERAL (
        SELECT ordering_key, destination, seq, since FROM {waiting_table} AS later
        WHERE (later.ordering_key, later.destination) > (pair.ordering_key, pair.destination)
        ORDER BY ordering_key, destination, seq, event_id LIMIT 1
    ) AS following
)
SELECT ordering_key, destination, seq, since FROM pair LIMIT ?
"""
BLOCKED_PAIRS_SQLITE = """
WITH RECURSIVE pair(value) AS (
    SELECT json_array(?, ?)
    UNION ALL
    SELECT (
        SELECT json_array(ordering_key, destination, seq, since) FROM {waiting_table}
        WHERE (ordering_key, destination) > (json_extract(pair.value, '$[0]'), json_extract(pair.value, '$[1]'))
        ORDER BY ordering_key, destination, seq, event_id LIMIT 1
    ) FROM pair WHERE value IS NOT NULL
)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'),
    json_extract(value, '$[3]')
FROM pair WHERE json_array_length(value) = 4 LIMIT ?
"""
# The order makes PostgreSQL count in the index, even if most of the table's rows have one key.
COUNT_WAITING = """
SELECT count(*) FROM (
    SELECT 1 FROM {waiting_table} WHERE ordering_key = ? AND destination = ? ORDER BY seq, event_id LIMIT ?
) AS waiting
"""
# Events that only wait behind others are the last in the index of due events.
COUNT_PARKED = """
SELECT count(*) FROM (
    SELECT 1 FROM {event_table} WHERE next_attempt_at >= {latest} AND order_state IS NOT NULL LIMIT ?
) AS parked
"""

# The condition under which releasing an event makes it due: it is parked, or waits for a retry at another destination.
IS_MADE_DUE = """
    {is_unfinished} AND (order_state = 'waits' OR (order_state = 'holds' AND progress IS NOT NULL))
"""
# Releases the first waiting events of each pair: deletes their rows here, makes the events due, and returns how many
# rows were deleted and how many events are due now. The parameters are the keys, the destinations, how many events of
# each pair, and the largest of these numbers. The due times are a few microseconds apart, in the order of the events'
# numbers, so that workers claim them in that order; and shortly before now, so that they are due at once. An event that
# also waits for a retry at another destination is not parked: it becomes due earlier. An event that was replaced since
# it was parked keeps the due time of its emitter.
#
# An event whose row another transaction has locked is left out, with its rows here. A worker that settles it locks the
# event first, and then writes rows here: waiting for it would be a deadlock. That worker looks again afterwards.
RELEASE_POSTGRES = """
WITH chosen AS MATERIALIZED (
    SELECT item.key, item.destination, first.seq, first.event_id
    FROM unnest(?::text[], ?::text[], ?::bigint[]) AS item (key, destination, most) CROSS JOIN LATERAL (
        SELECT seq, event_id, row_number() OVER (ORDER BY seq, event_id) AS number FROM {waiting_table}
        WHERE ordering_key = item.key AND destination = item.destination ORDER BY seq, event_id LIMIT ?
    ) AS first
    WHERE first.number <= item.most
),
locked AS MATERIALIZED (
    SELECT id FROM {event_table} WHERE id = ANY (ARRAY(SELECT event_id FROM chosen)) FOR UPDATE SKIP LOCKED
),
freed AS (
    DELETE FROM {waiting_table} AS waiting USING chosen
    WHERE waiting.ordering_key = chosen.key AND waiting.destination = chosen.destination
        AND waiting.seq = chosen.seq AND waiting.event_id = chosen.event_id
        AND (waiting.event_id IN (SELECT id FROM locked)
            OR NOT EXISTS (SELECT FROM {event_table} AS event WHERE event.id = waiting.event_id))
    RETURNING waiting.event_id, waiting.seq
),
made_due AS (
    UPDATE {event_table}
    SET next_attempt_at = LEAST(next_attempt_at, {now} - interval '2 milliseconds' + interval '1 millisecond'
            * ((seq - (SELECT min(seq) FROM freed))::float8 / (SELECT 1 + max(seq) - min(seq) FROM freed))),
        order_state = 'holds', updated_at = {now}
    WHERE id = ANY (ARRAY(SELECT event_id FROM freed)) AND {is_made_due} AND {async_commit}
    RETURNING 1
)
SELECT (SELECT count(*) FROM freed), (SELECT count(*) FROM made_due)
"""
FIRST_EVENTS_SQLITE = """
SELECT event_id FROM {waiting_table} WHERE ordering_key = ? AND destination = ? ORDER BY seq, event_id LIMIT ?
"""
FORGET_WAITING_SQLITE = """
DELETE FROM {waiting_table}
WHERE ordering_key = ? AND destination = ? AND event_id IN (SELECT value FROM json_each(?))
"""
MAKE_DUE_SQLITE = """
UPDATE {event_table} SET next_attempt_at = min(next_attempt_at, {now}), order_state = 'holds', updated_at = {now}
WHERE {ids} AND {is_made_due}
"""

# For a change of the recorded destinations: makes all parked events due again, or those that wait at one destination.
# They may have other destinations now. Their rows here stay: they are parked again if they still have to wait.
UNPARK_ALL = """
UPDATE {event_table} SET next_attempt_at = {now}, order_state = 'holds', updated_at = {now}
WHERE id IN (SELECT event_id FROM {waiting_table} WHERE destination = COALESCE(?, destination))
    AND order_state IS NOT NULL AND next_attempt_at >= {latest}
"""
# The same for events that were parked just now, if the recorded destinations have changed since they were claimed.
UNPARK = """
UPDATE {event_table} SET next_attempt_at = {now}, order_state = 'holds', updated_at = {now}
WHERE {ids} AND order_state IS NOT NULL AND next_attempt_at >= {latest}
"""
FORGET_DESTINATION = "DELETE FROM {waiting_table} WHERE destination = ?"
