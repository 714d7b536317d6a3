"""A claimed batch: one lease, its events, and how far each of them is.

Several threads look at it - one per destination, and the lease keeper - so everything that changes is under a lock.
An event is in one of four places, and only ever moves on:

    unbegun ──▶ begun ──▶ finished ──▶ (settled, gone)
       └──▶ (given back or lost, gone)

An event of several destinations is begun by the first that takes it, and finished when each has answered or, having
not begun when the batch's time was up, was put off.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from uuid import UUID

from outbox.events.event import Event
from outbox.storage.progress import ProgressEntry
from outbox.storage.timestamp import DatabaseClock


@dataclass(slots=True)
class Delivery:
    """One event on its way: where its destinations stand, which have yet to answer, and which were handed it.

    `deferred`: it was put off untried, at one destination at least. `audience` is the number of the names that have it
    when all that are awaited have taken it, if that is known from the start. Names are few, and tuples of them are
    shared by many events: sets of their own would keep Python's garbage collector busy.
    """

    event: Event
    progress: dict[str, ProgressEntry]
    awaited: tuple[str, ...] = ()
    begun: tuple[str, ...] = ()
    deferred: bool = False
    audience: int | None = None

    def heard(self, name: str, entry: ProgressEntry) -> bool:
        """One destination is done with it, or won't begin; whether that was the last."""
        self.progress[name] = entry
        if len(self.awaited) == 1 and name in self.awaited:
            self.awaited = ()
        else:
            self.awaited = tuple(each for each in self.awaited if each != name)
        return not self.awaited


class Batch:
    """Events claimed together under one lease."""

    def __init__(
        self,
        lease_id: UUID,
        events: list[Event],
        *,
        from_expired_lease: bool,
        full: bool,
        lease_seconds: float,
        claimed_from: float,
    ) -> None:
        self.lease_id = lease_id
        self.events = events
        # One event, taken over from a lease that ran out: it may be what killed its worker.
        self.from_expired_lease = from_expired_lease
        # As many as were asked for: there may be more where they came from.
        self.full = full
        self.clock = DatabaseClock(events[0].claimed_at)
        self.started_at = time.monotonic()
        # By this host's monotonic clock, from before the claim was sent: never later than the database's own.
        self.valid_until = claimed_from + lease_seconds
        # How many were not delivered after all.
        self.given_back = 0
        # What to do when it goes on for too long.
        self.overdue: Callable[[], None] | None = None
        # Held while outcomes are written: a batch has not ended before they are, whoever writes them.
        self.writing = threading.Lock()
        self._lock = threading.Lock()
        self._closed = False
        # By their positions: an id takes ten times as long to look up, and after a reset of its sequence, or with two
        # primaries, `seq` is not unique.
        self._unbegun: dict[int, Event] = dict(enumerate(events))
        for position, event in self._unbegun.items():
            event.position = position
        self._begun: dict[int, Delivery] = {}
        self._lost: set[int] = set()
        self._finished: list[Delivery] = []
        self._in_writing: list[Delivery] = []
        self._tally: Counter[str] = Counter()
        self._done = 0
        self._done_at = self.started_at

    def begin(self, delivery: Delivery, name: str) -> bool:
        """Whether this destination may have the event now: the lease is ours, and there is time."""
        position = delivery.event.position
        with self._lock:
            if self._closed or position in self._lost or time.monotonic() >= self.valid_until:
                return False
            if self._unbegun.pop(position, None) is not None:
                self._begun[position] = delivery
            elif position not in self._begun:
                return False
            if name not in delivery.begun:
                delivery.begun += (name,)
            return True

    def answer(self, delivery: Delivery, name: str, entry: ProgressEntry) -> None:
        """A destination that had begun is done with the event."""
        with self._lock:
            if delivery.heard(name, entry):
                self._finish(delivery)

    def put_off(self, delivery: Delivery, name: str, entry: ProgressEntry) -> None:
        """A destination is not given the event now; unless it went back already."""
        with self._lock:
            position = delivery.event.position
            if position in self._unbegun or position in self._begun:
                delivery.deferred = True
                if delivery.heard(name, entry):
                    self._finish(delivery)

    def finish(self, delivery: Delivery) -> None:
        """Nobody has to be asked: it can be settled."""
        with self._lock:
            self._finish(delivery)

    def take_finished(self) -> list[Delivery]:
        """What can be settled now; each is handed out once."""
        with self._lock:
            self._in_writing, self._finished = self._finished, []
            return self._in_writing

    def written(self) -> None:
        """What was taken last is settled. Until then it needs the lease: writing may have to wait for a locked row."""
        with self._lock:
            self._in_writing = []

    def take_unbegun(self) -> list[Event]:
        """What has not begun: it won't, and goes back. No other begins, at any destination."""
        with self._lock:
            self._closed = True
            unbegun, self._unbegun = list(self._unbegun.values()), {}
            self.given_back += len(unbegun)
            for delivery in list(self._begun.values()):
                self._put_off(delivery)
            return unbegun

    def progress(self) -> tuple[int, float]:
        """How many were worked on to the end, and how long that took."""
        with self._lock:
            return self._done, self._done_at - self.started_at

    def count(self, **counts: int) -> None:
        """What became of some of its events."""
        with self._lock:
            self._tally.update(counts)

    def tally(self) -> dict[str, int]:
        with self._lock:
            return dict(self._tally)

    def held(self) -> list[UUID]:
        """What still needs the lease."""
        with self._lock:
            deliveries = (*self._begun.values(), *self._finished, *self._in_writing)
            return [event.id for event in (*self._unbegun.values(), *(delivery.event for delivery in deliveries))]

    def renewed(self, until: float, lost: Collection[UUID]) -> None:
        """Ours for longer, but for those that somebody else has taken over: of them none may begin."""
        with self._lock:
            self.valid_until = until
            if lost:
                self._lost.update(event.position for event in self.events if event.id in lost)
            for position in self._lost:
                self._unbegun.pop(position, None)

    def _put_off(self, delivery: Delivery) -> None:
        """Whoever has not begun with the event won't: those who have don't wait for them."""
        for name in delivery.awaited:
            if name not in delivery.begun and delivery.heard(name, delivery.progress[name].still_due(self.clock.now())):
                self._finish(delivery)

    def _finish(self, delivery: Delivery) -> None:
        if delivery.begun:
            self._done += 1
            self._done_at = time.monotonic()
        position = delivery.event.position
        if self._begun.pop(position, None) is None:
            self._unbegun.pop(position, None)
        self._finished.append(delivery)
