"""The bare INSERT: an event's row as it is, with everything in it known beforehand."""

from __future__ import annotations

from typing import Any

from benchmarks.site import EVENT_TYPE, Site
from outbox.storage.ids import uuid7

COLUMNS = (
    "id, aggregate_type, aggregate_id, event_type, payload, headers, idempotency_key, max_attempts, status, attempts, "
    "next_attempt_at, created_at, updated_at"
)
INSERT = f"""
INSERT INTO outbox_event ({COLUMNS})
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, 'pending', 0, statement_timestamp(), statement_timestamp(), statement_timestamp())
""".encode()  # noqa: E501, S608  (names only)
COPY = """
COPY outbox_event (id, aggregate_type, aggregate_id, event_type, payload, headers, idempotency_key, max_attempts,
    status, attempts, next_attempt_at, created_at, updated_at) FROM STDIN
"""


def rows(site: Site, first: int, count: int, key: str) -> list[tuple[Any, ...]]:
    """The parameters of INSERT."""
    return [
        (uuid7(), "Order", str(number), EVENT_TYPE, site.payload_text, "{}", f"{key}:{number}", 5)
        for number in range(first, first + count)
    ]
