"""SQL for the archive: what is written to a file before the clean-up deletes it."""

from __future__ import annotations

# Every column of the table, in its order. JSON is read as the text that is stored: what is encrypted stays so.
ARCHIVED = (
    "id",
    "seq",
    "kind",
    "aggregate_type",
    "aggregate_id",
    "event_type",
    "ordering_key",
    "order_state",
    "payload",
    "headers",
    "progress",
    "correlation_id",
    "tenant_id",
    "subject",
    "idempotency_key",
    "status",
    "attempts",
    "max_attempts",
    "next_attempt_at",
    "lease_id",
    "lease_until",
    "audience",
    "error_message",
    "created_at",
    "updated_at",
    "delivered_at",
    "erased_at",
)
# The rows are locked until they are deleted: otherwise one could be retried or erased in between, and the file would
# hold what has to be gone.
ARCHIVE = "SELECT {archived} FROM {event_table} WHERE {ended} ORDER BY id LIMIT ? {skip_locked}"
