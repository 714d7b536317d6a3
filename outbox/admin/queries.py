"""Find, list and count events for the command line and the dashboard.

The cost of each query is bounded, however large the table is. Events are listed newest first: they are sorted by id,
and an id begins with the time at which it was created. If an index finds few events for a filter, all of them are read.
Otherwise only a window of the newest events is scanned, and the result says how far back the scan went.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import peewee

from outbox.admin.readable_row import readable_row
from outbox.delivery.audience import names_of
from outbox.destinations.recorded_destinations import read_recorded
from outbox.destinations.registry import Registry
from outbox.encryption.cipher import Cipher
from outbox.operations.count import COUNT_CAP, Count
from outbox.operations.filters import Condition, Filter
from outbox.storage.dialect import Dialect
from outbox.storage.ids import as_uuid
from outbox.storage.models import DELIVERED, EVENT, FAILED, JOB, KINDS, OutboxEvent
from outbox.storage.progress import parse
from outbox.storage.status import is_unfinished
from outbox.text import is_storable

PAGE = 50
# A list shows the arguments of a job whose message is no longer than this.
LISTED_LENGTH = 4_000


@dataclass(frozen=True, slots=True)
class ScanLimits:
    """How many events a query may read."""

    # If an index finds no more events than this, all of them are read and sorted.
    few: int = 5_000
    # Otherwise this many of the newest events are scanned.
    window: int = 20_000
    # The most event types and actors that are listed together. Nothing limits how many there are: applications make up
    # types, and may do so from what their users enter.
    names: int = 1_000


SCAN_LIMITS = ScanLimits()

LISTED = (
    OutboxEvent.id,
    OutboxEvent.seq,
    OutboxEvent.aggregate_type,
    OutboxEvent.aggregate_id,
    OutboxEvent.event_type,
    OutboxEvent.kind,
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
    OutboxEvent.ordering_key,
    OutboxEvent.order_state,
)


@dataclass(frozen=True, slots=True)
class Page:
    """One page of events, newest first.

    Pass `after` to get the next page; None means that there is no next page. `looked_back_to` is set if the window
    ended before the page was full: it is the oldest event that was scanned, and older events were not scanned.
    """

    events: list[OutboxEvent]
    after: UUID | None = None
    looked_back_to: OutboxEvent | None = None


def find(dialect: Dialect, id: UUID) -> OutboxEvent | None:
    """Return the event with this id, with all its columns, or None if it does not exist."""
    with dialect.bounded():
        found: list[OutboxEvent] = dialect.select(OutboxEvent.select().where(OutboxEvent.id == id))
    return found[0] if found else None


def find_ids(dialect: Dialect, head: str, tail: str, most: int) -> list[UUID]:
    """Return the first ids that begin and end with these hexadecimal digits, `most` of them at most."""
    first, last = UUID(head.ljust(32, "0")), UUID(head.ljust(32, "f"))
    event = OutboxEvent
    query = event.select(event.id).where(event.id >= first, event.id <= last).order_by(event.id)
    if tail:
        query = query.where(event.id.cast("text") ** f"%{tail}")
    with dialect.bounded():
        return [as_uuid(id) for (id,) in dialect.select(query.limit(most).tuples())]


def open_destinations(dialect: Dialect, events: Iterable[OutboxEvent]) -> dict[UUID, list[str]]:
    """Return at which destinations each of these events waits or has failed; those that are known."""
    event = OutboxEvent
    query = event.select(event.id, event.progress).where(
        event.id.in_([each.id for each in events]), event.progress.is_null(False)
    )
    with dialect.bounded():
        rows = dialect.select(query)
    return {
        row.id: [name for name, entry in parse(row.progress).items() if entry.is_open or entry.state == FAILED]
        for row in rows
    }


def page(
    dialect: Dialect,
    filter: Filter,
    *,
    after: UUID | None = None,
    size: int = PAGE,
    limits: ScanLimits = SCAN_LIMITS,
) -> Page:
    """Return the newest events that match the filter and are older than `after`."""
    matching = _Search(dialect, filter, limits)
    with dialect.bounded():
        return matching.page(matching.candidates(), after, size)


def count(dialect: Dialect, filter: Filter, cap: int = COUNT_CAP, limits: ScanLimits = SCAN_LIMITS) -> Count:
    """Return how many events match the filter; if the window is scanned, how many in the window."""
    matching = _Search(dialect, filter, limits)
    with dialect.bounded():
        return matching.count(matching.candidates(), cap)


def count_by_kind(
    dialect: Dialect, filter: Filter, cap: int = COUNT_CAP, limits: ScanLimits = SCAN_LIMITS
) -> dict[str, Count]:
    """Return how many rows of each kind match in the window, up to the cap. Kinds without rows are left out."""
    matching = _Search(dialect, filter, limits)
    with dialect.bounded():
        return matching.count_by_kind(cap)


def page_and_count(
    dialect: Dialect,
    filter: Filter,
    *,
    after: UUID | None = None,
    size: int = PAGE,
    limits: ScanLimits = SCAN_LIMITS,
) -> tuple[Page, Count]:
    """Return what `page` and `count` return, at a lower cost than two calls."""
    matching = _Search(dialect, filter, limits)
    with dialect.bounded():
        candidates = matching.candidates()
        return matching.page(candidates, after, size), matching.count(candidates, COUNT_CAP)


def event_types(dialect: Dialect, limits: ScanLimits = SCAN_LIMITS) -> list[str]:
    """Return the first event types in the table. A type that is also the name of an actor may be missing."""
    return [name for name, kind in _names(dialect, limits.names) if kind == EVENT]


def actors(dialect: Dialect, limits: ScanLimits = SCAN_LIMITS) -> list[str]:
    """Return the first actors that have jobs in the table. One that has the name of an event type may be missing."""
    return [name for name, kind in _names(dialect, limits.names) if kind == JOB]


def types_and_actors(dialect: Dialect, limits: ScanLimits = SCAN_LIMITS) -> tuple[list[str], list[str]]:
    """Return what `event_types` and `actors` return, with one query."""
    names = _names(dialect, limits.names)
    return [name for name, kind in names if kind == EVENT], [name for name, kind in names if kind == JOB]


def _names(dialect: Dialect, most: int) -> list[tuple[str, str]]:
    """Return up to `most` types and actors in the table, in their order, each with the kind of one of its rows.

    The query steps from name to name in the unique index; it reads few rows.
    """
    with dialect.bounded():
        return list(dialect.run(dialect.statements.names, (most,)).fetchall())


def kinds_of(dialect: Dialect, filter: Filter, limits: ScanLimits = SCAN_LIMITS) -> list[str]:
    """Return the kinds of the rows that a filter may select: of ids exactly, otherwise those that the table has.

    If it has more types and actors than are listed, each kind is returned.
    """
    if filter.only_kind is not None:
        return [filter.only_kind]
    if filter.ids is None:
        names = _names(dialect, limits.names + 1)
        found = {kind for _, kind in names} if len(names) <= limits.names else set(KINDS)
    else:
        chosen = OutboxEvent.select(OutboxEvent.kind).where(OutboxEvent.id.in_(filter.ids)).distinct()
        with dialect.bounded():
            found = {kind for (kind,) in dialect.select(chosen.tuples())}
    return [kind for kind in KINDS if kind in found]


def readable_rows(dialect: Dialect, ids: Sequence[UUID], cipher: Cipher | None) -> list[OutboxEvent]:
    """Return the events with these ids, in their order, with all columns; decrypted if this process has the key."""
    with dialect.bounded():
        rows = dialect.select(OutboxEvent.select().where(OutboxEvent.id.in_(ids)))
    found = {row.id: readable_row(row, cipher).event for row in rows}
    return [found[id] for id in ids if id in found]


def payloads_of_jobs(dialect: Dialect, events: Iterable[OutboxEvent], cipher: Cipher | None) -> dict[UUID, Any]:
    """Return the messages of those of the rows that are jobs, by id, without the messages that are too long to list.

    A message that can't be decrypted is returned as it is stored.
    """
    event, ids = OutboxEvent, [each.id for each in events if each.kind == JOB]
    if not ids:
        return {}
    length = peewee.fn.LENGTH(event.payload.cast("text"))
    with dialect.bounded():
        rows = dialect.select(event.select(event.id, event.payload).where(event.id.in_(ids), length <= LISTED_LENGTH))
    return {row.id: readable_row(row, cipher).event.payload for row in rows}


def search(dialect: Dialect, text: str, size: int = PAGE) -> list[OutboxEvent]:
    """Return what has this id, key, aggregate (`Order:7` or `7`), correlation id, tenant, or id of a message."""
    text = text.strip()
    if not text or not is_storable(text):
        return []
    id = _parse_id(text)
    found = None if id is None else find(dialect, id)
    if found is not None:
        return [found]
    kind, _, identity = text.partition(":")
    fields = ("idempotency_key", "aggregate_id", "correlation_id", "tenant_id")
    filters = [Filter.from_json({field: text}) for field in fields]
    if identity:
        filters.append(Filter(aggregate_type=kind, aggregate_id=identity))
    events = {event.id: event for filter in filters for event in page(dialect, filter, size=size).events}
    return [events[id] for id in sorted(events, reverse=True)][:size]


def _parse_id(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class _Search:
    """Finds the events that match a filter, within the limits."""

    dialect: Dialect
    filter: Filter
    limits: ScanLimits

    def candidates(self) -> list[UUID] | None:
        """Return the ids of the events that may match, if an index finds few of them; otherwise None.

        The most selective index is tried first.
        """
        if self.filter.ids is not None:
            return list(self.filter.ids)
        if self.filter.idempotency_key is not None:
            return self._ids_of_key()
        for query in self._queries():
            ids = self._ids(query.limit(self.limits.few + 1))
            if len(ids) <= self.limits.few:
                return ids
        return None

    def _queries(self) -> Iterator[Any]:
        """Yield a query for each index that may find few events."""
        event, filter = OutboxEvent, self.filter
        for column, value in (
            (event.correlation_id, filter.correlation_id),
            (event.aggregate_id, filter.aggregate_id),
            (event.tenant_id, filter.tenant_id),
        ):
            if value is not None:
                yield event.select(event.id).where(column == value)
        if filter.status is not None and filter.status not in (DELIVERED, FAILED):
            yield event.select(event.id).where(*is_unfinished())
        if filter.name is not None:
            # The order makes PostgreSQL read the index. For a frequent type it would scan the table, maybe to its end.
            yield event.select(event.id).where(event.event_type == filter.name).order_by(event.idempotency_key)

    def page(self, candidates: list[UUID] | None, after: UUID | None, size: int) -> Page:
        """Return the newest matching events: among the candidates, or in the window if `candidates` is None."""
        older = [] if after is None else [OutboxEvent.id < after]
        if candidates is None:
            return self._scan_window(older, after, size)
        conditions = [*self.filter.conditions(self.dialect.database), *older]
        events = self._newest(OutboxEvent.select(*LISTED).where(OutboxEvent.id.in_(candidates), *conditions), size)
        return Page(events[:size], events[size - 1].id if len(events) > size else None)

    def count(self, candidates: list[UUID] | None, cap: int) -> Count:
        """Count the matching events: among the candidates, or in the window, up to the cap, if `candidates` is None."""
        query = OutboxEvent.select(OutboxEvent.id)
        if candidates is not None:
            conditions = self.filter.conditions(self.dialect.database)
            query = query.where(OutboxEvent.id.in_(candidates), *conditions)
            return Count(self.dialect.count(query.limit(self.limits.few + 1)))
        query, is_whole = self._in_window(query)
        number = self.dialect.count(query.limit(cap + 1))
        return Count(min(number, cap), at_least=number > cap or not is_whole)

    def count_by_kind(self, cap: int) -> dict[str, Count]:
        """Count the matching rows in the window by their kind, up to the cap."""
        rows, is_whole = self._in_window(OutboxEvent.select(OutboxEvent.kind))
        rows = rows.limit(cap + 1)
        grouped = peewee.Select((rows,), (rows.c.kind, peewee.fn.COUNT(rows.c.kind))).group_by(rows.c.kind)
        numbers = dict(self.dialect.select(grouped.tuples()))
        has_more = sum(numbers.values()) > cap
        if has_more:
            numbers[max(numbers, key=lambda kind: numbers[kind])] -= 1
        return {kind: Count(number, has_more or not is_whole) for kind, number in numbers.items()}

    def _in_window(self, query: Any) -> tuple[Any, bool]:
        """Return the query limited to matching rows in the window, and whether the window contains all rows."""
        conditions = self.filter.conditions(self.dialect.database, in_window=True)
        end = self._end_of_window(None)
        if end is not None:
            conditions.append(OutboxEvent.id >= end)
        return (query.where(*conditions) if conditions else query), end is None

    def _ids_of_key(self) -> list[UUID] | None:
        """Return the ids of the events with an idempotency key.

        The index begins with the event type, so the query names all types and actors. If there are too many to name,
        return None: then the window is scanned.
        """
        event, filter = OutboxEvent, self.filter
        names = [filter.name]
        if filter.name is None:
            names = [name for name, _ in _names(self.dialect, self.limits.names + 1)]
            if len(names) > self.limits.names:
                return None
        return self._ids(event.select(event.id).where(event.event_type.in_(names), *filter.key_conditions()))

    def _scan_window(self, older: list[Condition], after: UUID | None, size: int) -> Page:
        conditions = [*self.filter.conditions(self.dialect.database, in_window=True), *older]
        end = self._end_of_window(after)
        if end is not None:
            conditions.append(OutboxEvent.id >= end)
        query = OutboxEvent.select(*LISTED)
        events = self._newest(query.where(*conditions) if conditions else query, size)
        if len(events) > size:
            return Page(events[:size], events[size - 1].id)
        return Page(events, end, None if end is None else find(self.dialect, end))

    def _end_of_window(self, after: UUID | None) -> UUID | None:
        """Return the oldest id of the window, or None if the window contains all events.

        Failed events have an index of their own, and so have the events of a tenant and those with a correlation id. So
        if the filter asks for one of these, the window counts only these: the index finds them in the order of the ids.
        """
        event, given = OutboxEvent, self.filter
        created_before = min(filter(None, (given.until, given.ended_until)), default=None)
        within = Filter(since=given.since, until=created_before)
        if given.correlation_id is not None:
            within = replace(within, correlation_id=given.correlation_id)
        elif given.tenant_id is not None:
            within = replace(within, tenant_id=given.tenant_id)
        elif given.status == FAILED:
            within = replace(within, status=FAILED)
        conditions = within.conditions(self.dialect.database)
        if after is not None:
            conditions.append(event.id < after)
        query = event.select(event.id).order_by(event.id.desc()).offset(self.limits.window - 1).limit(1)
        ids = self._ids(query.where(*conditions) if conditions else query)
        return ids[0] if ids else None

    def _ids(self, query: Any) -> list[UUID]:
        return [as_uuid(id) for (id,) in self.dialect.select(query.tuples())]

    def _newest(self, query: Any, size: int) -> list[OutboxEvent]:
        """Return the newest events of a query, up to `size` + 1. One more than `size` means there is a next page."""
        return self.dialect.select(query.order_by(OutboxEvent.id.desc()).limit(size + 1))


def delivered_to(dialect: Dialect, event: OutboxEvent) -> tuple[str, ...]:
    """Return the destinations that an event was delivered to; none if they were not recorded."""
    if event.audience is None:
        return ()
    return names_of(dialect, [event.audience]).get(event.audience, ())


def destination_names(dialect: Dialect, registry: Registry) -> list[str]:
    """Return the names of the destinations that workers have recorded, and of those registered here."""
    recorded = read_recorded(dialect)[1]
    return sorted({*(name for name, each in recorded.items() if not each.retired), *registry.destinations})
