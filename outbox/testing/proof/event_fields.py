"""Events as JSON: an event of a file, of a row of the table, or of another process."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any
from uuid import UUID

from outbox.core import Outbox
from outbox.errors import OutboxError, describe
from outbox.events.event import Event
from outbox.storage.models import OutboxEvent
from outbox.testing.event_by_hand import make_event
from outbox.testing.proof.errors import CannotProve

# The keys of an event in a file: those of `outbox show --json` that `make_event` takes.
TAKEN = ("correlation_id", "tenant_id", "idempotency_key", "ordering_key", "max_attempts")


def event_of_row(box: Outbox, row: OutboxEvent) -> Event:
    """Return a row of the table as an event at its first attempt, decrypted."""
    row = box.decrypted(row)
    return event_of_fields(
        {
            "id": str(row.id),
            "event_type": row.event_type,
            "aggregate_type": row.aggregate_type,
            "aggregate_id": row.aggregate_id,
            "body": json.dumps(row.payload, ensure_ascii=False),
            "headers": json.dumps(row.headers, ensure_ascii=False),
            "correlation_id": row.correlation_id,
            "tenant_id": row.tenant_id,
            "created_at": row.created_at.isoformat(),
            "max_attempts": row.max_attempts,
            "ordering_key": row.ordering_key,
            "seq": row.seq,
            "idempotency_key": row.idempotency_key,
        }
    )


def fields_of(event: Event) -> dict[str, Any]:
    """Return the fields from which `event_of_fields` makes the same event."""
    return {
        "id": event.id_text,
        "event_type": event.event_type,
        "aggregate_type": event.aggregate_type,
        "aggregate_id": event.aggregate_id,
        "body": event.body.decode(),
        "headers": json.dumps(event.headers, ensure_ascii=False),
        "correlation_id": event.correlation_id,
        "tenant_id": event.tenant_id,
        "created_at": event.created_at.isoformat(),
        "max_attempts": event.max_attempts,
        "ordering_key": event.ordering_key,
        "seq": event.seq,
        "idempotency_key": event.idempotency_key,
    }


def event_of_fields(fields: dict[str, Any]) -> Event:
    """Return the event at its first attempt."""
    fields = dict(fields)
    key = fields.pop("idempotency_key")
    fields["id"], fields["created_at"] = UUID(fields["id"]), datetime.fromisoformat(fields["created_at"])
    event = Event.received(**fields, attempt=1)
    event.idempotency_key = key
    return event


def events_of_file(text: str, name: str) -> list[Event]:
    """Return the events of a JSON file: an object, or a list of them, as `outbox show --json` prints them."""
    try:
        found = json.loads(text)
        return [_of_object(each) for each in (found if isinstance(found, list) else [found])]
    except (ValueError, TypeError, KeyError, AttributeError, OutboxError) as error:
        raise CannotProve(
            f"{name} is no event: {describe(error)}. Write "
            '{"event_type": "order.placed", "aggregate_type": "Order", "aggregate_id": "7", "payload": {…}}.'
        ) from None


def _of_object(given: dict[str, Any]) -> Event:
    return make_event(
        given["event_type"],
        given.get("payload"),
        aggregate=(given.get("aggregate_type", "Aggregate"), given.get("aggregate_id", "1")),
        headers=given.get("headers"),
        id=UUID(given["id"]) if "id" in given else None,
        **{name: given[name] for name in TAKEN if given.get(name) is not None},
    )
