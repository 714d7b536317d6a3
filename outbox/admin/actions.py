"""Changes that an operator makes to events."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

import peewee

from outbox.models import DELIVERED, OutboxEvent
from outbox.retry import WAITING

if TYPE_CHECKING:
    from outbox.core import Outbox

BATCH = 500


def retry_failed_events(
    box: Outbox,
    *,
    ids: Iterable[UUID | str] | None = None,
    event_type: str | None = None,
    aggregate_type: str | None = None,
    aggregate_id: str | None = None,
    tenant_id: str | None = None,
    limit: int | None = None,
) -> int:
    """Put failed events back, due now, their attempts counted from 0; answers how many.

    Destinations that have the event already don't get it again.
    """
    wanted: dict[str, object] = {
        "event_type": event_type,
        "aggregate_type": aggregate_type,
        "aggregate_id": aggregate_id,
        "tenant_id": tenant_id,
    }
    filters = [getattr(OutboxEvent, name) == value for name, value in wanted.items() if value is not None]
    if ids is not None:
        filters.append(OutboxEvent.id.in_([UUID(str(id)) for id in ids]))
    retried, after = 0, UUID(int=0)
    with box.dialect.connection():
        while limit is None or retried < limit:
            size = BATCH if limit is None else min(BATCH, limit - retried)
            with box.dialect.all_or_nothing():
                batch = list(_failed(box, filters, after, size))
                retried += sum(_put_back(box, event) for event in batch)
                box.bell.ring_after_commit(box.dialect)
            if len(batch) < size:
                break
            after = batch[-1].id
    return retried


def _failed(box: Outbox, filters: list[Any], after: UUID, size: int) -> Iterable[OutboxEvent]:
    query = (
        OutboxEvent.select(OutboxEvent.id, OutboxEvent.progress)
        .where(
            OutboxEvent.next_attempt_at.is_null(),
            OutboxEvent.delivered_at.is_null(),
            OutboxEvent.id > after,
            *filters,
        )
        .order_by(OutboxEvent.id)
        .limit(size)
    )
    if isinstance(box.database, peewee.PostgresqlDatabase):
        query = query.for_update(skip_locked=True)  # who else is retrying or deleting these has them
    found: Iterable[OutboxEvent] = query.execute(box.database)
    return found


def _put_back(box: Outbox, event: OutboxEvent) -> int:
    progress = json.dumps(_anew(event.progress)) if event.progress else None
    parameters = (progress, box.dialect.id(event.id))
    return int(box.dialect.run(box.dialect.statements.put_back, parameters).rowcount)


def _anew(progress: Mapping[str, Any]) -> dict[str, Any]:
    """Who has it keeps it; the others start again, by name, so that a worker that lacks one knows it."""
    return {name: entry if entry.get("state") == DELIVERED else {"state": WAITING} for name, entry in progress.items()}
