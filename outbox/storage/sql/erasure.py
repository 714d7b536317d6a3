"""SQL for erasure: remove what a row holds about a person, and keep the row."""

from __future__ import annotations

# The first parameter is the column `progress` without its errors, the second whether idempotency keys are kept, and the
# last whether events that wait are erased, too: these end as failed, and hold nothing back. An event under a valid
# lease is left to its worker, which is sending it right now.
# An idempotency key that only repeats the aggregate, or the id of the row, stays: then the same event can't be emitted
# again. `updated_at` stays, because the retention of a failed event is counted from it.
ERASE = """
UPDATE {event_table}
SET payload = '{{}}', headers = '{{}}', progress = ?, correlation_id = NULL, subject = NULL, erased_at = {now},
    idempotency_key = CASE
        WHEN ? OR idempotency_key = aggregate_type || ':' || aggregate_id
            OR replace(idempotency_key, '-', '') IN (replace({id}, '-', ''), 'job:' || replace({id}, '-', ''))
        THEN idempotency_key
        ELSE CASE kind WHEN 'job' THEN 'job:' ELSE '' END || 'erased:' || {id} END,
    error_message = CASE
        WHEN {is_delivered} THEN NULL
        WHEN {has_ended} THEN 'erased'
        ELSE 'dropped by an operator, and erased' END,
    status = CASE WHEN {has_ended} THEN status ELSE 'failed' END,
    order_state = CASE WHEN {has_ended} THEN order_state END,
    updated_at = CASE WHEN {has_ended} THEN updated_at ELSE {now} END,
    next_attempt_at = NULL, lease_id = NULL, lease_until = NULL
WHERE {ids} AND erased_at IS NULL AND ({has_ended} OR (? AND (lease_until IS NULL OR lease_until <= {now})))
RETURNING id
"""
