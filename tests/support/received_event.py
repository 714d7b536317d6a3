"""An event as a consumer has received it, for tests that need no database."""

from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from outbox.events.event import Event


def event(**fields: Any) -> Event:
    described: dict[str, Any] = {
        "id": uuid4(),
        "event_type": "order.placed",
        "aggregate_type": "Order",
        "aggregate_id": "7",
        "body": '{"zeros":1.50}',
        "headers": "{}",
        "correlation_id": None,
        "tenant_id": None,
        "created_at": datetime.now(UTC),
        "attempt": 1,
        "max_attempts": 5,
    }
    return Event.received(**described | fields)
