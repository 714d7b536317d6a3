"""A claimed batch: one lease, its events, and how far the delivery of each event is.

Several threads use a batch (one for each destination, the worker's own thread and the lease keeper's), so a lock
protects all that changes. An event is in one of three states, and moves only in this direction:

    unbegun ──▶ begun ──▶ finished ──▶ (settled, gone)
       └──▶ (given back or lost, gone)

An event begins when the first of its destinations takes it. It is finished when each destination has returned an
outcome or was put off, which means that it gets the event later. Destinations that have not begun when the batch is
closed are put off.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from uuid import UUID

from outbox.events.event import Event
from outbox.storage.attempts import Tried
from outbox.storage.progress import ProgressEntry
from outbox.storage.timestamp import DatabaseClock


@dataclass(slots=True)
class Delivery:
    """One event on its way to its destinations.

    `awaited` and `begun` are tuples because they hold few names and many events share the same tuple. A set for each
    event would keep Python's garbage collector busy.
    """

    event: Event
    # The state of each destination, by name.
    progress: dict[str, ProgressEntry]
    # The names of the destinations that have no outcome yet, and of those that have taken the event.
    awaited: tuple[str, ...] = ()
    begun: tuple[str, ...] = ()
    # The names of the destinations at which it waits behind an earlier event of its ordering key.
    waits: tuple[str, ...] = ()
    # The names of the destinations that had ended when the event's progress was written before its end.
    written: tuple[str, ...] = ()
    # The attempts that are written to the history.
    tried: tuple[Tried, ...] = ()
    # Whether a destination was put off without being called.
    deferred: bool = False
    # What destinations have raised, by name, if there are hooks of `outbox.on_failure`.
    exceptions: dict[str, BaseException] | None = None
    # The id of the audience that has the event once all awaited destinations have it; None if it is not known yet.
    audience: int | None = None

    @property
    def in_flight(self) -> tuple[str, ...]:
        """Return the names of the destinations that have taken the event and returned no outcome yet."""
        return tuple(name for name in self.begun if name in self.awaited)

    def record(self, name: str, entry: ProgressEntry) -> bool:
        """Store a destination's new entry; return whether no destination is awaited any more."""
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
        # Whether this is a single event from an expired lease. Such an event may have killed the worker that had it.
        self.from_expired_lease = from_expired_lease
        # Whether the claim returned as many events as it asked for, so that more may be due.
        self.full = full
        # Whether an event has an ordering key that matters (`ordering.py`).
        self.has_keys = any(event.order_state is not None for event in events)
        # The ordering keys whose events waited when the batch looked up what may hold its events back, and those that
        # it did not look up.
        self.keys_with_waiting: set[str] = set()
        # When it was claimed, by the database's clock.
        self.claimed_at = events[0].claimed_at
        self.clock = DatabaseClock(self.claimed_at)
        self.started_at = time.monotonic()
        # When the lease ends, by this host's monotonic clock. It is counted from before the claim was sent, so it is
        # never later than the end that the database has.
        self.valid_until = claimed_from + lease_seconds
        # Whether settling it has made further events due, which waited behind its own.
        self.has_released = False
        # Called by threads of the lease keeper: when the batch has taken its time slice, and when it has taken longer
        # than OUTBOX_MAX_RUN_SECONDS.
        self.on_slice_end: Callable[[], None] = _do_nothing
        self.on_overdue: Callable[[], None] = _do_nothing
        # Held while outcomes are written. A thread that ends the batch waits for it, so that all outcomes are written.
        self.writing = threading.Lock()
        self._lock = threading.Lock()
        self._closed = False
        # Events are looked up by position: a lookup by id takes ten times as long, and `seq` is not unique after its
        # sequence was reset, or with two primaries.
        self._unbegun: dict[int, Event] = dict(enumerate(events))
        for position, event in self._unbegun.items():
            event.position = position
        self._begun: dict[int, Delivery] = {}
        self._lost: set[int] = set()
        self._finished: list[Delivery] = []
        self._being_written: list[Delivery] = []
        self._counts: Counter[str] = Counter()
        # How many finished events a destination had taken, and when the last of them was finished.
        self._done = 0
        self._done_at = self.started_at

    def begin(self, delivery: Delivery, name: str, now: float) -> bool:
        """Return whether this destination may take the event now: the lease is valid, and the batch not closed."""
        position = delivery.event.position
        with self._lock:
            if self._closed or now >= self.valid_until or position in self._lost:
                return False
            if self._unbegun.pop(position, None) is not None:
                self._begun[position] = delivery
            elif position not in self._begun:
                return False
            if name not in delivery.begun:
                delivery.begun += (name,)
            return True

    def record(
        self,
        delivery: Delivery,
        name: str,
        entry: ProgressEntry,
        now: float,
        *,
        exception: BaseException | None = None,
        tried: Tried | None = None,
    ) -> None:
        """Store the new entry of a destination that has taken the event and returned an outcome.

        `tried` is the attempt for the history, if it is kept.
        """
        with self._lock:
            if tried is not None:
                delivery.tried += (tried,)
            if exception is not None:
                delivery.exceptions = {**(delivery.exceptions or {}), name: exception}
            if delivery.record(name, entry):
                self._finish(delivery, now)

    def put_off(self, delivery: Delivery, name: str, entry: ProgressEntry) -> None:
        """Store the new entry of a destination that is not called now, unless the event was given back or lost."""
        with self._lock:
            position = delivery.event.position
            if position in self._unbegun or position in self._begun:
                delivery.deferred = True
                if delivery.record(name, entry):
                    self._finish(delivery, time.monotonic())

    def wait_behind(self, delivery: Delivery, name: str) -> None:
        """Record that the event waits at a destination behind an earlier event of its ordering key."""
        with self._lock:
            position = delivery.event.position
            if position in self._unbegun or position in self._begun:
                delivery.waits += (name,)
                if delivery.record(name, delivery.progress[name].held_back(self.clock.now())):
                    self._finish(delivery, time.monotonic())

    def finish(self, delivery: Delivery) -> None:
        """Mark an event that goes to no destination now as ready to be settled."""
        with self._lock:
            self._finish(delivery, time.monotonic())

    def take_finished(self) -> list[Delivery]:
        """Return the deliveries that can be settled now, each of them once."""
        with self._lock:
            self._being_written, self._finished = self._finished, []
            return self._being_written

    def take_partly_done(self) -> list[Delivery]:
        """Return events with ordering keys that have ended at a destination and not at all of them, once each time."""
        if not self.has_keys:
            return []
        with self._lock:
            found = []
            for delivery in self._begun.values():
                ended = tuple(name for name in delivery.begun if name not in delivery.awaited)
                if delivery.event.is_ordered and len(ended) > len(delivery.written):
                    delivery.written = ended
                    found.append(delivery)
            return found

    def written(self) -> None:
        """Record that the deliveries that were taken last are settled.

        Until then they need the lease, because writing may have to wait for a lock.
        """
        with self._lock:
            self._being_written = []

    def take_unbegun(self) -> list[Event]:
        """Close the batch and return the events that have not begun. After that no destination can take an event."""
        with self._lock:
            self._closed = True
            unbegun, self._unbegun = list(self._unbegun.values()), {}
            for delivery in list(self._begun.values()):
                self._put_off_unbegun_destinations(delivery)
            return unbegun

    def speed(self) -> tuple[int, float]:
        """Return how many events that a destination had taken are finished, and how many seconds they took."""
        with self._lock:
            return self._done, self._done_at - self.started_at

    def count(self, **counts: int) -> None:
        """Add to the counts of the events by their outcome: delivered, retried, failed, put_off and so on."""
        with self._lock:
            self._counts.update(counts)

    def counts(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)

    def held(self) -> list[UUID]:
        """Return the ids of the events that still need the lease."""
        with self._lock:
            deliveries = (*self._begun.values(), *self._finished, *self._being_written)
            return [event.id for event in (*self._unbegun.values(), *(delivery.event for delivery in deliveries))]

    def renewed(self, until: float, lost: Collection[UUID]) -> None:
        """Extend the lease. Events whose lease another worker has taken over are lost: none of them may begin."""
        with self._lock:
            self.valid_until = until
            if lost:
                self._lost.update(event.position for event in self.events if event.id in lost)
            for position in self._lost:
                self._unbegun.pop(position, None)

    def _put_off_unbegun_destinations(self, delivery: Delivery) -> None:
        """Put off the destinations that have not taken the event, so that it does not wait for them."""
        for name in delivery.awaited:
            if name in delivery.begun:
                continue
            if delivery.record(name, delivery.progress[name].still_due(self.clock.now())):
                self._finish(delivery, time.monotonic())

    def _finish(self, delivery: Delivery, now: float) -> None:
        if delivery.begun:
            self._done += 1
            self._done_at = now
        position = delivery.event.position
        if self._begun.pop(position, None) is None:
            self._unbegun.pop(position, None)
        self._finished.append(delivery)


class Completion:
    """Counts the shares of a batch that are running, and calls back once when none is left.

    The callback runs in the thread that ended last.
    """

    def __init__(self, shares: int) -> None:
        self._lock = threading.Lock()
        self._running = shares
        self._callback: Callable[[], object] | None = None

    def expect(self, shares: int) -> None:
        """Add this many shares to those that are running."""
        with self._lock:
            self._running += shares

    def share_ended(self) -> None:
        """Count one share less."""
        with self._lock:
            self._running -= 1
        self._call_back_if_complete()

    def abandon(self) -> None:
        """Stop waiting for the shares that are still running."""
        with self._lock:
            self._running = 0
        self._call_back_if_complete()

    def then(self, callback: Callable[[], object]) -> None:
        """Call `callback` when all shares have ended, or at once if they have ended already."""
        with self._lock:
            self._callback = callback
        self._call_back_if_complete()

    def _call_back_if_complete(self) -> None:
        with self._lock:
            if self._running > 0:
                return
            callback, self._callback = self._callback, None
        if callback is not None:
            callback()


def _do_nothing() -> None:
    pass
