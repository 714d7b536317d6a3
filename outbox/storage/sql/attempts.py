"""SQL for the history of attempts: one statement adds those of a batch."""

from __future__ import annotations

# The parameter is a JSON list of attempts. An event keeps its newest ones: the older ones are deleted, the new ones
# counted. Events that were deleted or erased meanwhile get none: an attempt's error may quote what was erased.
ATTEMPTS_ITEMS_POSTGRES = """
WITH item AS MATERIALIZED (
    SELECT * FROM json_to_recordset(?) AS item (event_id uuid, destination text, at timestamptz, seconds float8,
        outcome text, http_status integer, error text, worker text)
)"""
ATTEMPTS_INSERT_POSTGRES = """
INSERT INTO {attempt_table} (event_id, destination, at, seconds, outcome, http_status, error, worker)
SELECT event_id, destination, at, seconds, outcome, http_status, error, worker FROM item
WHERE EXISTS (SELECT FROM {event_table} AS event WHERE event.id = item.event_id AND event.erased_at IS NULL)
    AND {async_commit}
"""
ATTEMPTS_SURPLUS_POSTGRES = """,
added AS MATERIALIZED (SELECT event_id, count(*) AS number FROM item GROUP BY event_id),
surplus AS (
    DELETE FROM {attempt_table} WHERE (event_id, id) IN (
        SELECT event_id, id FROM (
            SELECT event_id, id, row_number() OVER (PARTITION BY event_id ORDER BY id DESC) AS place
            FROM {attempt_table} WHERE event_id = ANY (ARRAY(SELECT event_id FROM added))
        ) AS kept JOIN added USING (event_id)
        WHERE place > ? - number
    )
)"""
ATTEMPTS_ADD_POSTGRES = ATTEMPTS_ITEMS_POSTGRES + ATTEMPTS_SURPLUS_POSTGRES + ATTEMPTS_INSERT_POSTGRES
# For events that have none yet.
ATTEMPTS_ADD_FIRST_POSTGRES = ATTEMPTS_ITEMS_POSTGRES + ATTEMPTS_INSERT_POSTGRES
ATTEMPTS_ADD_SQLITE = """
INSERT INTO {attempt_table} (event_id, destination, at, seconds, outcome, http_status, error, worker)
SELECT value ->> 'event_id', value ->> 'destination', value ->> 'at', value ->> 'seconds', value ->> 'outcome',
    value ->> 'http_status', value ->> 'error', value ->> 'worker'
FROM json_each(?)
WHERE EXISTS (
    SELECT 1 FROM {event_table} AS event WHERE event.id = value ->> 'event_id' AND event.erased_at IS NULL
)
"""
ATTEMPTS_ADD_FIRST_SQLITE = ATTEMPTS_ADD_SQLITE
ATTEMPTS_TRIM_SQLITE = """
DELETE FROM {attempt_table} WHERE id IN (
    SELECT id FROM (
        SELECT id, row_number() OVER (PARTITION BY event_id ORDER BY id DESC) AS place
        FROM {attempt_table} WHERE event_id IN (SELECT value ->> 'event_id' FROM json_each(?))
    ) WHERE place > ?
)
"""
ATTEMPTS_FORGET = "DELETE FROM {attempt_table} WHERE event_{ids}"
ATTEMPTS_FORGET_OLD = """
DELETE FROM {attempt_table}
WHERE {row} {in_list}(SELECT {row} FROM {attempt_table} WHERE at < {before} ORDER BY at LIMIT ?){end}
"""
