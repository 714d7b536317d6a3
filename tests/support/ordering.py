"""Destinations, events and questions for tests of order per key."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

import outbox
from outbox import OutboxEvent
from outbox.core import Outbox
from outbox.destinations.outcome import DELIVERED_OUTCOME, Outcome
from outbox.events.event import Event
from outbox.storage.models import DELIVERED
from tests.support.table import change

FAR = datetime(9000, 1, 1, tzinfo=UTC)


class Receiver:
    """A destination that notes what it gets, and refuses what it is told to."""

    ordered = True
    on_failed = "block"

    def __init__(self, name: str = "crm", *events: str) -> None:
        self.name = name
        self.events = events or ("*",)
        self.got: list[tuple[str, str]] = []
        self.outcomes: dict[str, Outcome] = {}
        self.calls: Counter[str] = Counter()

    def deliver(self, events: Iterable[Event], lease: outbox.Lease) -> Iterator[tuple[Event, Outcome]]:
        for event in events:
            yield event, self.outcome_of(event)

    def outcome_of(self, event: Event) -> Outcome:
        self.calls[event.aggregate_id] += 1
        outcome = self.outcomes.get(event.aggregate_id, DELIVERED_OUTCOME)
        if outcome is DELIVERED_OUTCOME:
            self.got.append((event.ordering_key or "", event.aggregate_id))
        return outcome

    def ids(self, key: str = "k") -> list[str]:
        return [id for each, id in self.got if each == key]


class Pipeline(Receiver):
    """Takes all events before it returns the first outcome, as a stream does."""

    def deliver(self, events: Iterable[Event], lease: outbox.Lease) -> Iterator[tuple[Event, Outcome]]:
        for event in list(events):
            yield event, self.outcome_of(event)


def keyed(*ids: str, key: str = "k", **fields: Any) -> list[OutboxEvent]:
    return [outbox.emit("Order", id, "order.placed", ordering_key=key, **fields) for id in ids]


def run(box: Outbox, batch_size: int = 100) -> None:
    """Deliver until nothing is due."""
    while box.process_pending_events(batch_size)["processed"]:
        pass


@pytest.fixture
def crm(box: Outbox) -> Receiver:
    receiver = Receiver()
    outbox.add_destination(receiver)
    return receiver


def waiting() -> dict[str, list[str]]:
    """Return where which events wait."""
    found = defaultdict(list)
    names = {event.seq: event.aggregate_id for event in OutboxEvent.select()}
    rows = outbox.current().dialect.run("SELECT destination, seq FROM outbox_waiting ORDER BY seq").fetchall()
    for destination, seq in rows:
        found[destination].append(names.get(seq, "(gone)"))
    return dict(found)


def settle_first(worker: Outbox, event: OutboxEvent, *, before: str) -> None:
    """Settle the event just before that worker runs a statement."""

    def note(query: Any) -> None:
        if query.sql == before:
            worker.database.query_hooks.remove(note)
            change(event, delivered_at=event.created_at, next_attempt_at=None, lease_until=None, status=DELIVERED)

    worker.database.query_hooks.append(note)
