"""SQL for tests of applications (`outbox.testing`): find what is due, and move the times of all rows into the past.

In this way time passes in a test: the database's clock, which decides what is due, can't be set.
"""

from __future__ import annotations

# The events that are due and not under a valid lease. A test's table is small.
DUE_IDS = """
SELECT {id} FROM {event_table}
WHERE next_attempt_at <= {now} AND (lease_until IS NULL OR lease_until <= {now})
"""

# Hides events from claims, and shows them again: those that a call has tried, while it delivers others.
HIDE = "UPDATE {event_table} SET lease_until = {latest} WHERE {ids} AND lease_id IS NULL"
SHOW = "UPDATE {event_table} SET lease_until = NULL WHERE {ids} AND lease_id IS NULL"

# Each parameter is the number of seconds. `next_attempt_at` stays as it is in a row that is parked: it says there that
# no clock makes the event due.
MOVE_EVENTS_BACK_POSTGRES = """
UPDATE {event_table}
SET created_at = created_at - ? * interval '1 second',
    updated_at = updated_at - ? * interval '1 second',
    delivered_at = delivered_at - ? * interval '1 second',
    lease_until = lease_until - ? * interval '1 second',
    next_attempt_at = CASE WHEN next_attempt_at < {latest}
        THEN next_attempt_at - ? * interval '1 second'
        ELSE next_attempt_at END
"""
MOVE_EVENTS_BACK_SQLITE = """
UPDATE {event_table}
SET created_at = strftime('%Y-%m-%d %H:%M:%f000+00:00', created_at, '-' || ? || ' seconds'),
    updated_at = strftime('%Y-%m-%d %H:%M:%f000+00:00', updated_at, '-' || ? || ' seconds'),
    delivered_at = strftime('%Y-%m-%d %H:%M:%f000+00:00', delivered_at, '-' || ? || ' seconds'),
    lease_until = strftime('%Y-%m-%d %H:%M:%f000+00:00', lease_until, '-' || ? || ' seconds'),
    next_attempt_at = CASE WHEN next_attempt_at < {latest}
        THEN strftime('%Y-%m-%d %H:%M:%f000+00:00', next_attempt_at, '-' || ? || ' seconds')
        ELSE next_attempt_at END
"""

MOVE_WAITING_BACK_POSTGRES = """
UPDATE {waiting_table} SET since = since - ? * interval '1 second'
"""
MOVE_WAITING_BACK_SQLITE = """
UPDATE {waiting_table} SET since = strftime('%Y-%m-%d %H:%M:%f000+00:00', since, '-' || ? || ' seconds')
"""

MOVE_INBOX_BACK_POSTGRES = """
UPDATE {inbox_table} SET processed_at = processed_at - ? * interval '1 second'
"""
MOVE_INBOX_BACK_SQLITE = """
UPDATE {inbox_table}
SET processed_at = strftime('%Y-%m-%d %H:%M:%f000+00:00', processed_at, '-' || ? || ' seconds')
"""
