"""Find the blocked ordering keys: at which destination events wait, and behind which event.

A blocked key is a pair of an ordering key and a destination at which events of the key wait (`delivery/ordering.py`).
The event that they wait behind is its *head*: it waits for a retry, is being delivered, or has failed.

The pairs are found by stepping from one to the next in the primary key of outbox_waiting, so the number of events in
each does not matter. The waiting events are counted, and the head is looked up, only for the pairs that are shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import takewhile

import peewee

from outbox.admin.durations import format_duration
from outbox.admin.queries import LISTED
from outbox.delivery.ordering import holds_back
from outbox.destinations.recorded_destinations import Snapshot, read_recorded
from outbox.operations.count import COUNT_CAP, Count
from outbox.storage.dialect import Dialect
from outbox.storage.models import FAILED, HOLDS, OutboxEvent, Waiting
from outbox.storage.operator_models import Process
from outbox.storage.progress import failed, parse
from outbox.storage.schema_ordering import CAN_HOLD
from outbox.storage.status import is_parked
from outbox.storage.waiting_events import (
    FirstWaiting,
    Holder,
    blocked_pairs,
    count_waiting,
)

# How many earlier events of a key one query reads to find the head, and how many queries there are at most. Events that
# hold back the key at other destinations are among them.
HEADS_READ = 50
MOST_QUERIES = 20
# How many destinations of one key are looked at.
DESTINATIONS_READ = 1_000
# How many keys the overview names: those that have been blocked for longest.
NAMED = 20

NONE = Count(0)


@dataclass(frozen=True, slots=True)
class BlockedKey:
    """An ordering key, and a destination at which events of it wait."""

    key: str
    destination: str
    waiting: Count
    # Since when the first of them waits.
    since: datetime
    # What they wait behind. None if nothing holds them back any more: a worker makes them due within seconds.
    head: OutboxEvent | None

    @property
    def is_failed(self) -> bool:
        """Return whether the key stays blocked until an operator acts: the head has failed, at this destination."""
        if self.head is None:
            return False
        return self.head.status == FAILED or self.destination in failed(self.head.progress)


@dataclass(frozen=True, slots=True)
class BlockedKeys:
    """How many keys are blocked, since when the first of them is, and the keys that have been blocked for longest."""

    count: Count = NONE
    since: datetime | None = None
    # The longest wait first.
    longest: list[BlockedKey] = field(default_factory=list)


def read_blocked_keys(
    dialect: Dialect, *, key: str | None = None, limit: int = NAMED, cap: int = COUNT_CAP
) -> BlockedKeys:
    """Return the keys that are blocked, or the destinations at which one key is, up to `limit` of them."""
    with dialect.bounded():
        first = _read_pairs(dialect, key, cap)
        chosen = sorted(first[:cap], key=lambda each: each.since)[:limit]
        heads = _Heads(dialect) if chosen else None
        return BlockedKeys(
            count=Count.up_to(cap, len(first)),
            since=min((each.since for each in first), default=None),
            longest=[] if heads is None else [_blocked(dialect, heads, each, cap) for each in chosen],
        )


def _read_pairs(dialect: Dialect, key: str | None, cap: int) -> list[FirstWaiting]:
    if key is None:
        return blocked_pairs(dialect, ("", ""), cap + 1)
    return list(takewhile(lambda each: each.key == key, blocked_pairs(dialect, (key, ""), DESTINATIONS_READ)))


def _blocked(dialect: Dialect, heads: _Heads, first: FirstWaiting, cap: int) -> BlockedKey:
    waiting = count_waiting(dialect, (first.key, first.destination), cap + 1)
    return BlockedKey(
        key=first.key,
        destination=first.destination,
        waiting=Count.up_to(cap, waiting),
        since=first.since,
        head=heads.find(first),
    )


@dataclass(frozen=True, slots=True)
class EventOrder:
    """At which destinations one event waits behind an earlier one of its key, and where later ones wait behind it."""

    # Each with what it waits behind, and since when it waits itself.
    waits: list[BlockedKey] = field(default_factory=list)
    holds_back: list[BlockedKey] = field(default_factory=list)


def order_of(dialect: Dialect, event: OutboxEvent) -> EventOrder:
    """Return where one event waits, and where it holds back others."""
    if event.ordering_key is None or event.order_state is None:
        return EventOrder()
    with dialect.bounded():
        found = read_blocked_keys(dialect, key=event.ordering_key, limit=DESTINATIONS_READ).longest
        if not found:
            return EventOrder()
        rows = dialect.select(
            Waiting.select().where(
                Waiting.ordering_key == event.ordering_key,
                Waiting.destination.in_([each.destination for each in found]),
                Waiting.seq == event.seq,
                Waiting.event_id == event.id,
            )
        )
    since = {row.destination: row.since for row in rows}
    return EventOrder(
        waits=[replace(each, since=since[each.destination]) for each in found if each.destination in since],
        holds_back=[each for each in found if each.head is not None and each.head.id == event.id],
    )


# Heads


@dataclass(frozen=True, slots=True)
class _Policy:
    """A destination as its workers have recorded and reported it. This process may not have it."""

    name: str
    events: Sequence[str]
    on_failed: str


class _Heads:
    """Finds the heads of keys."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._recorded = Snapshot(*read_recorded(dialect))
        self._skipping = _names_that_skip(dialect.select(Process.select(Process.details)))
        self._now = dialect.now()

    def find(self, first: FirstWaiting) -> OutboxEvent | None:
        """Return the head: the earliest event that the destination must have before the first waiting event."""
        found = self._recorded.by_name.get(first.destination)
        policy = _Policy(
            first.destination,
            () if found is None else tuple(found.patterns),
            "skip" if first.destination in self._skipping else "block",
        )
        after = -1
        for _ in range(MOST_QUERIES):
            events = self._read(first, after)
            for event in events:
                holder = Holder(event.seq, event.event_type, parse(event.progress), event.status == FAILED)
                if holds_back(holder, policy, self._recorded):
                    return event
            if len(events) < HEADS_READ:
                break
            after = events[-1].seq
        return None

    def _read(self, first: FirstWaiting, after: int) -> list[OutboxEvent]:
        """Return the next events of the key that hold back later ones, up to the first waiting event."""
        event = OutboxEvent
        query = (
            event.select(*LISTED, event.progress, event.erased_at)
            .where(
                peewee.SQL(f"({CAN_HOLD})"),
                event.ordering_key == first.key,
                event.seq > after,
                event.seq < first.seq,
                (event.order_state == HOLDS) | (event.next_attempt_at <= self._now),
            )
            .order_by(event.seq)
            .limit(HEADS_READ)
        )
        return self._dialect.select(query)


def _names_that_skip(processes: Iterable[Process]) -> set[str]:
    """Return the destinations that go on after a failed event, as workers report them."""
    return {
        name
        for process in processes
        for name, each in process.details.get("destinations", {}).items()
        if each.get("on_failed") == "skip"
    }


# Words


def describe_head(blocked: BlockedKey, now: datetime) -> str:
    """Return what a key waits for: `failed`, `next attempt in 5 min`, `due for 3 s` or `being delivered`."""
    head = blocked.head
    if head is None:
        return "released within seconds"
    if blocked.is_failed:
        return "failed" if head.status == FAILED else "failed here, not finished elsewhere"
    if head.lease_until is not None:
        return "being delivered" if head.lease_until > now else "its lease has expired"
    if is_parked(head):
        return "waits itself"
    wait = head.next_attempt_at - now
    if wait > timedelta(0):
        return f"next attempt in {format_duration(wait)}"
    return f"due for {format_duration(-wait)}"


def how_to_go_on(blocked: Iterable[BlockedKey]) -> list[str]:
    """Return what an operator can do about heads that have failed, with their ids: two sentences, or none."""
    heads = {each.head.id: each.head for each in blocked if each.head is not None and each.is_failed}
    if not heads:
        return []
    skip = f"go on without the failed event: `outbox skip {' '.join(map(str, heads))}`."
    ids = [str(id) for id, head in heads.items() if head.erased_at is None]
    if not ids:
        return ["It can't be retried, since its content was erased.", skip.replace("go on", "Go on", 1)]
    commands = f"`outbox retry {' '.join(ids)}`"
    if pending := [str(id) for id, head in heads.items() if head.status != FAILED]:
        commands = f"`outbox fail {' '.join(pending)}`, which ends the tries elsewhere, and then {commands}"
    return [f"Fix the cause and run {commands}.", f"Or {skip}"]


def describe_waits(waits: Sequence[BlockedKey], now: datetime) -> str:
    """Return what an event waits behind: `behind the event … (order.placed, failed) at crm`."""
    return ", and ".join(_describe_wait(wait, now) for wait in waits)


def _describe_wait(wait: BlockedKey, now: datetime) -> str:
    if wait.head is None:
        return f"at {wait.destination}, where nothing holds it back any more: a worker makes it due within seconds"
    state = describe_head(wait, now)
    return f"behind the event `{wait.head.id}` ({wait.head.event_type}, {state}) at {wait.destination}"
