"""Run an action on all events that match a filter.

The events are changed in batches, with one transaction for each batch, so an action can be interrupted and run again.
An event is not changed if its status has changed so that the action does not apply to it any more. Each transaction
also updates the audit entry. No statement waits long for a lock: an action that another session holds up ends as
interrupted, and can be continued.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import peewee

from outbox.operations.actions import RETRY, Action
from outbox.operations.count import COUNT_CAP, Count
from outbox.operations.filters import Condition, Filter
from outbox.storage.dialect import Dialect
from outbox.storage.ids import as_uuid
from outbox.storage.models import OutboxEvent
from outbox.storage.status import status_is
from outbox.telemetry import audit
from outbox.telemetry.audit import Interrupted, Operator

BATCH = 500


@dataclass(frozen=True, slots=True)
class Continued:
    """An interrupted action: its audit entry, the last event that it has read, and the last event to read."""

    id: UUID
    after: UUID
    last: UUID


# Is called inside a transaction that has made events due. It notifies a worker after the commit.
NotifyAfterCommit = Callable[[Dialect], None]


def apply(
    dialect: Dialect,
    notify: NotifyAfterCommit,
    action: Action,
    filter: Filter,
    *,
    operator: Operator | None = None,
    limit: int | None = None,
    per_second: float | None = None,
    batch_size: int = BATCH,
    continuing: Continued | None = None,
    audited: Mapping[str, Any] | None = None,
    sleep: Callable[[float], object] = time.sleep,
) -> Generator[int]:
    """Run the action on all events that match now, oldest first. After each batch, yield how many have been changed.

    `operator` is written to the audit log. If it is None, the application makes the change, and the audit log gets no
    entry. `limit` is the most events to change, `per_second` the most events to change in a second. `continuing`: go on
    where an interrupted action has ended. `audited` is what the audit log has instead of the filter.

    To stop it after a batch, throw `audit.Interrupted` into the generator: the audit log then says what interrupted it.
    It raises that by itself after an operator has asked it to stop (`audit.request_stop`).
    """
    total = 0
    with dialect.lock_limit():
        last = _newest(dialect) if continuing is None else continuing.last
        after = UUID(int=0) if continuing is None else continuing.after
        matching = None if operator is None else _count_between(dialect, action, filter, after, last)
    given = {"limit": limit, "per_second": per_second, "continues": None if continuing is None else str(continuing.id)}
    parameters = {**action.parameters, **{name: value for name, value in given.items() if value is not None}}
    expected = matching if limit is None or matching is None else min(limit, matching)
    with (
        dialect.connection(),
        audit.record(
            dialect,
            operator,
            action.name,
            filter.to_json() if audited is None else audited,
            parameters,
            total=expected,
            last_id=last,
        ) as entry,
    ):
        while last is not None and (limit is None or total < limit):
            size = _next_size(batch_size, limit, total, per_second)
            began_at = time.monotonic()
            with dialect.lock_limit(), dialect.atomic():
                rows = _select_batch(dialect, _conditions(dialect, action, filter), after, last, size)
                changed = action.run(dialect, rows) if rows else ()
                entry.add(changed, rows[-1].id if rows else None)
                if action.makes_due and changed:
                    notify(dialect)
            total += len(changed)
            yield total
            if len(rows) < size:
                break
            if entry.stop_by is not None:
                raise Interrupted(f"{entry.stop_by}, who stopped it")
            after = rows[-1].id
            if per_second is not None:
                sleep(max(0.0, len(changed) / per_second - (time.monotonic() - began_at)))


def _count_between(dialect: Dialect, action: Action, filter: Filter, after: UUID, last: UUID | None) -> int:
    """Return how many events of this range the action applies to."""
    if last is None:
        return 0
    event = OutboxEvent
    between = [event.id > after, event.id <= last]
    return dialect.count(event.select(event.id).where(*between, *_conditions(dialect, action, filter)))


def count_all(dialect: Dialect, action: Action, filter: Filter) -> int:
    """Return how many events the action would change. This counts all of them, which may take long."""
    query = OutboxEvent.select(OutboxEvent.id).where(*_conditions(dialect, action, filter))
    with dialect.lock_limit():
        return dialect.count(query)


def count_erased(dialect: Dialect, action: Action, filter: Filter) -> int:
    """Return how many events match the filter and are delivered or have failed, but were erased."""
    statuses = [condition for status in action.statuses for condition in status_is(status)]
    query = OutboxEvent.select(OutboxEvent.id)
    query = query.where(*filter.conditions(dialect.database), *statuses, OutboxEvent.erased_at.is_null(False))
    with dialect.lock_limit():
        return dialect.count(query)


def count(dialect: Dialect, action: Action, filter: Filter, cap: int = COUNT_CAP) -> Count:
    """Return how many events the action would change. Counting stops at the cap."""
    query = OutboxEvent.select(OutboxEvent.id).where(*_conditions(dialect, action, filter))
    with dialect.lock_limit():
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
        event.select(event.id, event.progress, event.audience, event.ordering_key)
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
