"""Run an action on all events that match a filter.

The events are changed in batches, with one transaction for each batch, so an action can be interrupted and run again.
An event is not changed if its status has changed so that the action does not apply to it any more. Each transaction
also updates the audit entry.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable
from uuid import UUID

import peewee

from outbox.operations import audit
from outbox.operations.actions import RETRY, Action
from outbox.operations.count import COUNT_CAP, Count
from outbox.operations.filters import Condition, Filter
from outbox.storage.dialect import Dialect
from outbox.storage.ids import as_uuid
from outbox.storage.models import OutboxEvent

BATCH = 500

# Is called inside a transaction that has made events due. It notifies a worker after the commit.
NotifyAfterCommit = Callable[[Dialect], None]


def apply(
    dialect: Dialect,
    notify: NotifyAfterCommit,
    action: Action,
    filter: Filter,
    *,
    who: str | None = None,
    limit: int | None = None,
    per_second: float | None = None,
    batch_size: int = BATCH,
    sleep: Callable[[float], object] = time.sleep,
) -> Generator[int]:
    """Run the action on all events that match now, oldest first. After each batch, yield how many have been changed.

    `who` is the operator's name for the audit log. If it is None, the application makes the change, and the audit log
    gets no entry. `limit` is the most events to change, `per_second` the most events to change in a second.
    """
    total = 0
    with dialect.connection(), audit.record(dialect, who, action.name, filter) as entry:
        last = _newest(dialect)
        after = UUID(int=0)
        while last is not None and (limit is None or total < limit):
            size = _next_size(batch_size, limit, total, per_second)
            began_at = time.monotonic()
            with dialect.atomic():
                rows = _select_batch(dialect, _conditions(dialect, action, filter), after, last, size)
                changed = action.run(dialect, rows) if rows else 0
                entry.add(changed)
                if action.makes_due and changed:
                    notify(dialect)
            total += changed
            yield total
            if len(rows) < size:
                break
            after = rows[-1].id
            if per_second is not None:
                sleep(max(0.0, changed / per_second - (time.monotonic() - began_at)))


def count_all(dialect: Dialect, action: Action, filter: Filter) -> int:
    """Return how many events the action would change. This counts all of them, which may take long."""
    query = OutboxEvent.select(OutboxEvent.id).where(*_conditions(dialect, action, filter))
    with dialect.connection():
        return dialect.count(query)


def count(dialect: Dialect, action: Action, filter: Filter, cap: int = COUNT_CAP) -> Count:
    """Return how many events the action would change. Counting stops at the cap."""
    query = OutboxEvent.select(OutboxEvent.id).where(*_conditions(dialect, action, filter))
    with dialect.connection():
        return Count.up_to(cap, dialect.count(query.limit(cap + 1)))


def retry_failed_events(
    dialect: Dialect,
    notify: NotifyAfterCommit,
    *,
    ids: Iterable[UUID | str] | None = None,
    event_type: str | None = None,
    actor: str | None = None,
    aggregate_type: str | None = None,
    aggregate_id: str | None = None,
    tenant_id: str | None = None,
    limit: int | None = None,
) -> int:
    """Make failed events and jobs due now, with their attempts counted from 0. Return how many were changed.

    Destinations that have the event already don't get it again.
    """
    filter = Filter(
        ids=None if ids is None else tuple(UUID(str(id)) for id in ids),
        event_type=event_type,
        actor=actor,
        aggregate_type=aggregate_type,
        aggregate_id=aggregate_id,
        tenant_id=tenant_id,
    )
    return max(apply(dialect, notify, RETRY, filter, limit=limit), default=0)


def _conditions(dialect: Dialect, action: Action, filter: Filter) -> list[Condition]:
    return [*filter.conditions(dialect.database), *action.conditions()]


def _select_batch(
    dialect: Dialect, conditions: list[Condition], after: UUID, last: UUID, size: int
) -> list[OutboxEvent]:
    event = OutboxEvent
    query = (
        event.select(event.id, event.progress, event.audience)
        .where(event.id > after, event.id <= last, *conditions)
        .order_by(event.id)
        .limit(size)
    )
    if isinstance(dialect.database, peewee.PostgresqlDatabase):
        query = query.for_update(skip_locked=True)  # another transaction is changing the locked events
    return dialect.select(query)


def _newest(dialect: Dialect) -> UUID | None:
    """Return the id of the newest event. Events that are emitted later are not changed."""
    query = OutboxEvent.select(OutboxEvent.id).order_by(OutboxEvent.id.desc()).limit(1)
    found = dialect.select(query.tuples())
    return as_uuid(found[0][0]) if found else None


def _next_size(batch_size: int, limit: int | None, total: int, per_second: float | None) -> int:
    size = batch_size if limit is None else min(batch_size, limit - total)
    return size if per_second is None else max(1, min(size, int(per_second)))
