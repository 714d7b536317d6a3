"""What operators ask about events. Every answer costs about the same in a table of any size.

Events are listed newest first, by id, which begins with the time of its making. Where a filter fits few events and an
index knows them, they are fetched by that index and all of them are seen. Where it fits many, or no index knows, a
window of the newest is looked through, and the answer says how far back it went.
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
# So many events of a kind are few: they are sorted as a whole.
FEW = 5_000
# So many rows are looked through for what no index knows.
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
    """Some events, newest first.

    `after` continues behind the last of them; None: that was all. `looked_back_to` is where a window ended before the
    page was full: what is older has not been looked at.
    """

    events: list[OutboxEvent]
    after: UUID | None = None
    looked_back_to: OutboxEvent | None = None


def find(dialect: Dialect, id: UUID) -> OutboxEvent | None:
    """One event, with everything."""
    with dialect.connection():
        found: list[OutboxEvent] = dialect.select(OutboxEvent.select().where(OutboxEvent.id == id))
    return found[0] if found else None


def page(dialect: Dialect, filter: Filter, *, after: UUID | None = None, size: int = PAGE) -> Page:
    """The newest events that match, older than `after`."""
    with dialect.connection():
        return _page(dialect, filter, _narrow(dialect, filter), after, size)


def count(dialect: Dialect, filter: Filter, cap: int = COUNT_CAP) -> Count:
    """How many match, looked at no further than a window reaches."""
    with dialect.connection():
        return _count(dialect, filter, _narrow(dialect, filter), cap)


def page_and_count(
    dialect: Dialect, filter: Filter, *, after: UUID | None = None, size: int = PAGE
) -> tuple[Page, Count]:
    """Both, for less than the two apart."""
    with dialect.connection():
        narrow = _narrow(dialect, filter)
        return _page(dialect, filter, narrow, after, size), _count(dialect, filter, narrow, COUNT_CAP)


def event_types(dialect: Dialect) -> list[str]:
    """Every type there is, found by stepping from one to the next in the unique index."""
    with dialect.connection():
        return [type for (type,) in dialect.run(dialect.statements.event_types).fetchall()]


def search(dialect: Dialect, text: str, size: int = PAGE) -> list[OutboxEvent]:
    """What an operator has at hand: an id, a key, or the id of what the event is about, `Order:7` or `7`."""
    text = text.strip()
    if not text or not is_storable(text):
        return []
    id = _id_in(text)
    found = None if id is None else find(dialect, id)
    if found is not None:
        return [found]
    kind, _, identity = text.partition(":")
    looks = [Filter(idempotency_key=text), Filter(aggregate_id=text)]
    if identity:
        looks.append(Filter(aggregate_type=kind, aggregate_id=identity))
    events = {event.id: event for look in looks for event in page(dialect, look, size=size).events}
    return [events[id] for id in sorted(events, reverse=True)][:size]


def _id_in(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def _page(dialect: Dialect, filter: Filter, narrow: list[UUID] | None, after: UUID | None, size: int) -> Page:
    older = [] if after is None else [OutboxEvent.id < after]
    if narrow is None:
        return _look_through(dialect, filter, older, after, size)
    conditions = [*filter.conditions(dialect.database), *older]
    events = _newest(dialect, OutboxEvent.select(*LISTED).where(OutboxEvent.id.in_(narrow), *conditions), size)
    return Page(events[:size], events[size - 1].id if len(events) > size else None)


def _count(dialect: Dialect, filter: Filter, narrow: list[UUID] | None, cap: int) -> Count:
    if narrow is not None:
        conditions = filter.conditions(dialect.database)
        query = OutboxEvent.select(OutboxEvent.id).where(OutboxEvent.id.in_(narrow), *conditions)
        return Count(_counted(dialect, query.limit(FEW + 1)))
    conditions = filter.conditions(dialect.database, in_window=True)
    end = _end_of_window(dialect, filter, None)
    if end is not None:
        conditions.append(OutboxEvent.id >= end)
    query = OutboxEvent.select(OutboxEvent.id)
    if conditions:
        query = query.where(*conditions)
    number = _counted(dialect, query.limit(cap + 1))
    return Count(min(number, cap), at_least=number > cap or end is not None)


def _narrow(dialect: Dialect, filter: Filter) -> list[UUID] | None:
    """The ids of the few that an index knows, if there are few; the most telling index comes first."""
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
    """A key is unique within a type, and known by its type only: there are few types."""
    types = event_types(dialect) if filter.event_type is None else [filter.event_type]
    event = OutboxEvent
    query = event.select(event.id).where(event.event_type.in_(types), event.idempotency_key == filter.idempotency_key)
    return [as_uuid(id) for (id,) in dialect.select(query.tuples())]


def _look_through(dialect: Dialect, filter: Filter, older: list[Condition], after: UUID | None, size: int) -> Page:
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
    """The oldest id that is looked at; None if all are. Failed events have an index of their own."""
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
    return dialect.select(query.order_by(OutboxEvent.id.desc()).limit(size + 1))


def _counted(dialect: Dialect, query: Any) -> int:
    return dialect.count(query)


def delivered_to(dialect: Dialect, event: OutboxEvent) -> tuple[str, ...]:
    """Return the names of the destinations that a delivered event reached, as far as that was recorded."""
    if event.audience is None:
        return ()
    return names_of(dialect, [event.audience]).get(event.audience, ())


def destination_names(dialect: Dialect, registry: Registry) -> list[str]:
    """Return the destinations of the deployment: those that workers have recorded, and those registered here."""
    recorded = read_recorded(dialect)[1]
    return sorted({*(name for name, each in recorded.items() if not each.retired), *registry.destinations})
