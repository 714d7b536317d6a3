"""SQL for the archive: read the rows that are written to a file before they are deleted."""

from __future__ import annotations

# Every column of the table, in its order. JSON is read as the stored text, so what is encrypted stays encrypted.
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
# The rows are locked until they are deleted. Otherwise an event could be retried or erased in between, and the file
# would contain it as it was before.
ARCHIVE = "SELECT {archived} FROM {event_table} WHERE {ended} ORDER BY id LIMIT ? {skip_locked}"
