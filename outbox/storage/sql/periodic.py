"""SQL for periodic jobs: what schedulers declare and advance, what operators decide, and what workers report."""

from __future__ import annotations

# A changed schedule applies from now on: its times that have passed already are not run. The next time is calculated
# again after each declaration, because the rules of a timezone may have changed.
PERIODIC_DECLARE = """
INSERT INTO {periodic_table} (name, kind, schedule, words, timezone, declared_at, seen_at, scheduled_from)
VALUES (?, ?, ?, ?, ?, {now}, {now}, {now})
ON CONFLICT (name) DO UPDATE
SET kind = EXCLUDED.kind, schedule = EXCLUDED.schedule, words = EXCLUDED.words, timezone = EXCLUDED.timezone,
    seen_at = EXCLUDED.seen_at, next_run_at = NULL,
    scheduled_from = CASE
        WHEN {periodic_table}.schedule = EXCLUDED.schedule AND {periodic_table}.timezone = EXCLUDED.timezone
        THEN {periodic_table}.scheduled_from ELSE EXCLUDED.scheduled_from END
"""
PERIODIC_SEEN = "UPDATE {periodic_table} SET seen_at = {now} WHERE name = ? AND schedule = ? AND timezone = ?"
PERIODIC_JOBS = """
SELECT name, schedule, timezone, paused, seen_at, scheduled_from, last_scheduled_at, next_run_at, requested_at,
    {now}
FROM {periodic_table}
"""
PERIODIC_PLAN = "UPDATE {periodic_table} SET next_run_at = {moment} WHERE name = ? AND next_run_at {is_same} {moment}"
# The compare-and-set. It succeeds in one scheduler only, however many have read the same last time. The row stays
# locked until the run is stored and the transaction ends. The parameters are the new time and the next one, the name,
# the last time as it was read, and the schedule by which the new time was calculated: another scheduler may have
# declared another one meanwhile.
PERIODIC_ADVANCE = """
UPDATE {periodic_table}
SET last_scheduled_at = {moment}, next_run_at = {moment}
WHERE name = ? AND last_scheduled_at {is_same} {moment} AND schedule = ? AND timezone = ? AND NOT paused
"""
PERIODIC_STORED = "UPDATE {periodic_table} SET last_run_at = {moment}, last_run_id = ? WHERE name = ?"
PERIODIC_SKIPPED = "UPDATE {periodic_table} SET skipped_at = {moment}, skipped_why = ? WHERE name = ?"
PERIODIC_UNFINISHED = """
SELECT 1 FROM {event_table}
WHERE id = (SELECT last_run_id FROM {periodic_table} WHERE name = ?) AND {is_unfinished}
"""

# What operators decide. A request is taken by compare-and-set as well, so it is one run.
PERIODIC_REQUEST = "UPDATE {periodic_table} SET requested_at = {now} WHERE name = ? AND requested_at IS NULL"
PERIODIC_TAKE_REQUEST = "UPDATE {periodic_table} SET requested_at = NULL WHERE name = ? AND requested_at = {moment}"
PERIODIC_PAUSE = "UPDATE {periodic_table} SET paused = true WHERE name = ? AND NOT paused"
PERIODIC_RESUME = """
UPDATE {periodic_table} SET paused = false, scheduled_from = {now}, next_run_at = NULL WHERE name = ? AND paused
"""
PERIODIC_FORGET = "DELETE FROM {periodic_table} WHERE name = ?"
PERIODIC_FORGET_OLD = "DELETE FROM {periodic_table} WHERE seen_at < {before}"

# What a worker reports when it has called a periodic function.
PERIODIC_ENDED = """
UPDATE {periodic_table} SET ended_at = {now}, ended_id = ?, ended_seconds = ?, ended_error = ? WHERE name = ?
"""
