"""Events in every state, as tests of the pages need them."""

from datetime import UTC, datetime, timedelta
from typing import Any

from outbox.storage import timestamp
from outbox.storage.models import OutboxEvent
from tests.support.table import change, emit, emit_one


def now() -> datetime:
    return datetime.now(UTC)


def failed(error: str = "runner: HTTP 500", *, destination: str = "runner", **fields: Any) -> OutboxEvent:
    event = emit_one(**fields)
    change(
        event,
        status="failed",
        attempts=5,
        next_attempt_at=None,
        error_message=error,
        progress={
            destination: {"state": "failed", "attempts": 5, "error": error.removeprefix(f"{destination}: ")},
            "bus": {"state": "delivered", "attempts": 1},
        },
    )
    return event


def delivered(**fields: Any) -> OutboxEvent:
    event = emit_one(**fields)
    change(event, status="delivered", attempts=1, next_attempt_at=None, delivered_at=now())
    return event


def many_delivered(count: int, **fields: Any) -> list[OutboxEvent]:
    events = emit(count, **fields)
    change(*events, status="delivered", attempts=1, next_attempt_at=None, delivered_at=now())
    return events


def waiting(seconds: float = 600, **fields: Any) -> OutboxEvent:
    event = emit_one(**fields)
    due = now() + timedelta(seconds=seconds)
    change(
        event,
        attempts=2,
        next_attempt_at=due,
        error_message="search: refused",
        progress={
            "search": {"state": "waiting", "attempts": 2, "not_before": timestamp.to_text(due), "error": "refused"}
        },
    )
    return event


def sending(seconds: float = 60, **fields: Any) -> OutboxEvent:
    event = emit_one(**fields)
    change(event, status="sending", attempts=1, lease_until=now() + timedelta(seconds=seconds))
    return event
