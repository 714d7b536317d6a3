"""The queries of operators about events. The cost of each is bounded, however large the table is.

Events are listed newest first, by id, which begins with the time at which it was made. If an index finds few events for
a filter, they are read by that index and all of them are seen. Otherwise a window of the newest events is scanned, and
the result says how far back the scan went.

The command line and the dashboard use them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from outbox.delivery.audience import names_of
from outbox.destinations.recorded_destinations import read_recorded
from outbox.destinations.registry import Registry
from outbox.operations.count import COUNT_CAP, Count
from outbox.operations.filters import Condition, Filter
from outbox.storage.dialect import Dialect
from outbox.storage.ids import as_uuid
from outbox.storage.models import DELIVERED, FAILED, OutboxEvent
from outbox.storage.status import is_unfinished
from outbox.text import is_storable

PAGE = 50
# Up to this many events that an index finds are read and sorted as a whole.
FEW = 5_000
# This many of the newest events are scanned if no index finds few.
WINDOW = 20_000

LISTED = (
    OutboxEvent.id,
    OutboxEvent.seq,
    OutboxEvent.aggregate_type,
    OutboxEvent.aggregate_id,
    OutboxEvent.event_type,
    OutboxEvent.tenant_id,
    OutboxEvent.idempotency_key,
    OutboxEvent.status,
    OutboxEvent.attempts,
    OutboxEvent.max_attempts,
    OutboxEvent.next_attempt_at,
    OutboxEvent.lease_until,
    OutboxEvent.delivered_at,
    OutboxEvent.error_message,
    OutboxEvent.created_at,
    OutboxEvent.updated_at,
)


@dataclass(frozen=True, slots=True)
class Page:
    """One page of events, newest first.

    Pass `after` to get the next page; None means that there is none. `looked_back_to` is the oldest event that was
    scanned, if the window ended before the page was full: older events were not scanned.
    """

    events: list[OutboxEvent]
    after: UUID | None = None
    looked_back_to: OutboxEvent | None = None


def find(dialect: Dialect, id: UUID) -> OutboxEvent | None:
    """Return the event with this id, with all its columns; None if there is none."""
    with dialect.connection():
        found: list[OutboxEvent] = dialect.select(OutboxEvent.select().where(OutboxEvent.id == id))
    return found[0] if found else None


def page(dialect: Dialect, filter: Filter, *, after: UUID | None = None, size: int = PAGE) -> Page:
    """Return the newest events that match the filter and are older than `after`."""
    with dialect.connection():
        return _page(dialect, filter, _candidates(dialect, filter), after, size)


def count(dialect: Dialect, filter: Filter, cap: int = COUNT_CAP) -> Count:
    """Return how many events match the filter, within the window."""
    with dialect.connection():
        return _count(dialect, filter, _candidates(dialect, filter), cap)


def page_and_count(
    dialect: Dialect, filter: Filter, *, after: UUID | None = None, size: int = PAGE
) -> tuple[Page, Count]:
    """Return both. It costs less than two calls."""
    with dialect.connection():
        candidates = _candidates(dialect, filter)
        return _page(dialect, filter, candidates, after, size), _count(dialect, filter, candidates, COUNT_CAP)


def event_types(dialect: Dialect) -> list[str]:
    """Return all event types in the table: the query steps from one type to the next in the unique index."""
    with dialect.connection():
        return [type for (type,) in dialect.run(dialect.statements.event_types).fetchall()]


def search(dialect: Dialect, text: str, size: int = PAGE) -> list[OutboxEvent]:
    """Return the events with this id, idempotency key or aggregate (`Order:7` or `7`)."""
    text = text.strip()
    if not text or not is_storable(text):
        return []
    id = _id_in(text)
    found = None if id is None else find(dialect, id)
    if found is not None:
        return [found]
    kind, _, identity = text.partition(":")
    filters = [Filter(idempotency_key=text), Filter(aggregate_id=text)]
    if identity:
        filters.append(Filter(aggregate_type=kind, aggregate_id=identity))
    events = {event.id: event for filter in filters for event in page(dialect, filter, size=size).events}
    return [events[id] for id in sorted(events, reverse=True)][:size]


def _id_in(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def _page(dialect: Dialect, filter: Filter, candidates: list[UUID] | None, after: UUID | None, size: int) -> Page:
    older = [] if after is None else [OutboxEvent.id < after]
    if candidates is None:
        return _scan_window(dialect, filter, older, after, size)
    conditions = [*filter.conditions(dialect.database), *older]
    events = _newest(dialect, OutboxEvent.select(*LISTED).where(OutboxEvent.id.in_(candidates), *conditions), size)
    return Page(events[:size], events[size - 1].id if len(events) > size else None)


def _count(dialect: Dialect, filter: Filter, candidates: list[UUID] | None, cap: int) -> Count:
    if candidates is not None:
        conditions = filter.conditions(dialect.database)
        query = OutboxEvent.select(OutboxEvent.id).where(OutboxEvent.id.in_(candidates), *conditions)
        return Count(dialect.count(query.limit(FEW + 1)))
    conditions = filter.conditions(dialect.database, in_window=True)
    end = _end_of_window(dialect, filter, None)
    if end is not None:
        conditions.append(OutboxEvent.id >= end)
    query = OutboxEvent.select(OutboxEvent.id)
    if conditions:
        query = query.where(*conditions)
    number = dialect.count(query.limit(cap + 1))
    return Count(min(number, cap), at_least=number > cap or end is not None)


def _candidates(dialect: Dialect, filter: Filter) -> list[UUID] | None:
    """Return the ids of all candidates if an index finds few; None if not. The most selective index is tried first."""
    event = OutboxEvent
    if filter.ids is not None:
        return list(filter.ids)
    if filter.idempotency_key is not None:
        return _ids_of_key(dialect, filter)
    choices: list[list[Condition]] = []
    if filter.aggregate_id is not None:
        choices.append([event.aggregate_id == filter.aggregate_id])
    if filter.status is not None and filter.status not in (DELIVERED, FAILED):
        choices.append(is_unfinished())
    if filter.event_type is not None:
        choices.append([event.event_type == filter.event_type])
    for choice in choices:
        query = event.select(event.id).where(*choice).limit(FEW + 1)
        ids = [as_uuid(id) for (id,) in dialect.select(query.tuples())]
        if len(ids) <= FEW:
            return ids
    return None


def _ids_of_key(dialect: Dialect, filter: Filter) -> list[UUID]:
    """Return the ids of the events with a key. The index needs a type as well, and there are few types."""
    types = event_types(dialect) if filter.event_type is None else [filter.event_type]
    event = OutboxEvent
    query = event.select(event.id).where(event.event_type.in_(types), event.idempotency_key == filter.idempotency_key)
    return [as_uuid(id) for (id,) in dialect.select(query.tuples())]


def _scan_window(dialect: Dialect, filter: Filter, older: list[Condition], after: UUID | None, size: int) -> Page:
    conditions = [*filter.conditions(dialect.database, in_window=True), *older]
    end = _end_of_window(dialect, filter, after)
    if end is not None:
        conditions.append(OutboxEvent.id >= end)
    query = OutboxEvent.select(*LISTED)
    events = _newest(dialect, query.where(*conditions) if conditions else query, size)
    if len(events) > size:
        return Page(events[:size], events[size - 1].id)
    return Page(events, end, None if end is None else find(dialect, end))


def _end_of_window(dialect: Dialect, filter: Filter, after: UUID | None) -> UUID | None:
    """Return the oldest id of the window; None if it reaches back to the oldest event.

    Failed events have an index of their own: for them the window counts failed events only.
    """
    event = OutboxEvent
    within = Filter(status=FAILED if filter.status == FAILED else None, since=filter.since, until=filter.until)
    conditions = within.conditions(dialect.database)
    if after is not None:
        conditions.append(event.id < after)
    query = event.select(event.id).order_by(event.id.desc()).offset(WINDOW - 1).limit(1)
    if conditions:
        query = query.where(*conditions)
    found = dialect.select(query.tuples())
    return as_uuid(found[0][0]) if found else None


def _newest(dialect: Dialect, query: Any, size: int) -> list[OutboxEvent]:
    """Return the newest events of a query, and one more than `size`, if there is one: then there is a next page."""
    return dialect.select(query.order_by(OutboxEvent.id.desc()).limit(size + 1))


def delivered_to(dialect: Dialect, event: OutboxEvent) -> tuple[str, ...]:
    """Return the destinations that a delivered event was delivered to, if that was recorded."""
    if event.audience is None:
        return ()
    return names_of(dialect, [event.audience]).get(event.audience, ())


def destination_names(dialect: Dialect, registry: Registry) -> list[str]:
    """Return the names of the destinations that workers have recorded, and of those registered here."""
    recorded = read_recorded(dialect)[1]
    return sorted({*(name for name, each in recorded.items() if not each.retired), *registry.destinations})
