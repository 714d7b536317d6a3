"""Make an event without a table, to call a handler directly, as a plain function."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from outbox.current_outbox import loaded_settings
from outbox.events.declared_object import DeclaredObject
from outbox.events.emit import from_object
from outbox.events.event import Event
from outbox.events.new_event import NewEvent
from outbox.events.validate import validate


def make_event(
    event_type: str | DeclaredObject | type[Any],
    payload: object = None,
    *,
    aggregate: tuple[str, object] = ("Aggregate", 1),
    attempt: int = 1,
    headers: Mapping[str, Any] | None = None,
    correlation_id: str | None = None,
    tenant_id: str | None = None,
    idempotency_key: str | None = None,
    ordering_key: str | None = None,
    max_attempts: int | None = None,
    id: UUID | None = None,
    created_at: datetime | None = None,
) -> Event:
    """Return an event as a handler gets it. Arguments that emit would refuse are refused here, too.

    - `event_type`, `payload`: as for emit; also an object of a class that `outbox.event` has declared.
    - `aggregate`: the type and the id of its aggregate.
    - `attempt`: the number of the attempt, from 1.
    - `headers`, `correlation_id`, `tenant_id`, `idempotency_key`, `ordering_key`, `max_attempts`: as for emit.
    - `id`: None for a new one.
    - `created_at`: when it was emitted; None for now.
    """
    new = NewEvent(
        aggregate[0],
        aggregate[1],
        event_type,
        payload,
        headers=headers,
        correlation_id=correlation_id,
        tenant_id=tenant_id,
        idempotency_key=idempotency_key,
        max_attempts=max_attempts,
        ordering_key=ordering_key,
    )
    draft = validate(from_object(new), loaded_settings())
    event = Event.received(
        id=draft.id if id is None else id,
        event_type=draft.event_type,
        aggregate_type=draft.aggregate_type,
        aggregate_id=draft.aggregate_id,
        body=draft.payload,
        headers=draft.headers,
        correlation_id=draft.correlation_id,
        tenant_id=draft.tenant_id,
        created_at=datetime.now(UTC) if created_at is None else created_at,
        attempt=attempt,
        max_attempts=draft.max_attempts,
        ordering_key=draft.ordering_key,
        seq=1,
    )
    event.idempotency_key = draft.idempotency_key
    return event
