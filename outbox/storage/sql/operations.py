"""SQL for operators: what they do to events, the audit log, and the clean-up of what has ended.

Each statement only changes events that are still in the state that it is for (`status.py`).
"""

from __future__ import annotations

RETRY = """
UPDATE {event_table}
SET status = 'pending', attempts = 0, next_attempt_at = {now}, progress = ?, updated_at = {now}
WHERE id = ? AND {is_failed}
"""
# An event under a lease is left to its worker, which is delivering it right now.
FAIL_BY_HAND = """
UPDATE {event_table}
SET status = 'failed', next_attempt_at = NULL, lease_id = NULL, lease_until = NULL, updated_at = {now},
    error_message = CAST(? AS text) || COALESCE('; ' || error_message, '')
WHERE {ids} AND {is_unfinished} AND (lease_until IS NULL OR lease_until <= {now})
"""
DELETE_BY_HAND = "DELETE FROM {event_table} WHERE {ids} AND {has_ended}"
REPLAY = """
UPDATE {event_table}
SET status = 'pending', attempts = 0, next_attempt_at = {now}, delivered_at = NULL, progress = ?,
    error_message = NULL, updated_at = {now}
WHERE {ids} AND {is_delivered}
"""

AUDIT_BEGIN = "INSERT INTO {audit_table} (id, at, who, action, filters, affected) VALUES (?, {now}, ?, ?, ?, 0)"
AUDIT_NOTE = """
INSERT INTO {audit_table} (id, at, who, action, filters, affected, ended_at) VALUES (?, {now}, ?, ?, ?, 0, {now})
"""
AUDIT_ADD = "UPDATE {audit_table} SET affected = affected + ? WHERE id = ?"
AUDIT_END = "UPDATE {audit_table} SET ended_at = {now} WHERE id = ?"

# Every event type and actor in the table, found by stepping from one to the next in the unique index, with the kind of
# one of its rows. (An event type and an actor with the same name are one name here.)
NAMES = """
WITH RECURSIVE step AS (
    SELECT (SELECT min(event_type) FROM {event_table}) AS type
    UNION ALL
    SELECT (SELECT min(event_type) FROM {event_table} WHERE event_type > step.type)
    FROM step WHERE step.type IS NOT NULL
)
SELECT type, (SELECT kind FROM {event_table} WHERE event_type = step.type LIMIT 1) FROM step WHERE type IS NOT NULL
"""

# The clean-up walks along the primary key, which begins with the time of creation, so it needs no index of its own.
# When an event ended is known from the database's timestamps: a wrong clock in the id can only delay its deletion.
ENDED = "{has_ended} AND COALESCE(delivered_at, updated_at) < {before} AND id > ? AND id < ?"
DELETE_ENDED = """
DELETE FROM {event_table}
WHERE id {in_list}(SELECT id FROM {event_table} WHERE {ended} ORDER BY id LIMIT ? {skip_locked}){end}
RETURNING id
"""
COUNT_ENDED = "SELECT count(*) FROM (SELECT 1 FROM {event_table} WHERE {ended} LIMIT ?) AS ended"
FORGET_AUDIT = "DELETE FROM {audit_table} WHERE at < {before}"
