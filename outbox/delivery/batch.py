"""A claimed batch: one lease, its events, and how far each of them is.

Several threads look at it - one per destination, and the lease keeper - so everything that changes is under a lock.
An event is in one of four places, and only ever moves on:

    unbegun ──▶ begun ──▶ finished ──▶ (settled, gone)
       └──▶ (given back or lost, gone)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import UUID

from outbox.event import Event
from outbox.retry import Standing
from outbox.timestamp import DatabaseClock


@dataclass(slots=True)
class Delivery:
    """One event on its way: where its destinations stand, and which of them have yet to answer."""

    event: Event
    standings: dict[str, Standing]
    awaited: set[str] = field(default_factory=set)


class Batch:
    """Events claimed together under one lease."""

    def __init__(
        self, lease_id: UUID, events: list[Event], *, full: bool, lease_seconds: float, claimed_from: float
    ) -> None:
        self.lease_id = lease_id
        self.events = events
        # As many as were asked for: there may be more where they came from.
        self.full = full
        self.clock = DatabaseClock(events[0].claimed_at)
        self.started_at = claimed_from
        # By this host's monotonic clock, from before the claim was sent: never later than the database's own.
        self.valid_until = claimed_from + lease_seconds
        # Held while a destination's answer is entered into a delivery that others may be entering theirs into.
        self.recording = threading.Lock()
        self._lock = threading.Lock()
        self._unbegun: dict[UUID, Event] = {event.id: event for event in events}
        self._begun: dict[UUID, Event] = {}
        self._finished: list[Delivery] = []

    def begin(self, event: Event) -> bool:
        """Whether this event may be delivered now: it is still ours and was not given back."""
        with self._lock:
            if event.id in self._begun:
                return True
            if event.id not in self._unbegun or time.monotonic() >= self.valid_until:
                return False
            self._begun[event.id] = self._unbegun.pop(event.id)
            return True

    def finish(self, delivery: Delivery) -> None:
        """All its destinations have answered: it can be settled."""
        with self._lock:
            self._unbegun.pop(delivery.event.id, None)
            self._begun.pop(delivery.event.id, None)
            self._finished.append(delivery)

    def take_finished(self) -> list[Delivery]:
        """What can be settled now; each is handed out once."""
        with self._lock:
            finished, self._finished = self._finished, []
            return finished

    def take_unbegun(self) -> list[Event]:
        """What has not begun: it won't, and goes back."""
        with self._lock:
            unbegun, self._unbegun = list(self._unbegun.values()), {}
            return unbegun

    def held(self) -> list[UUID]:
        """What still needs the lease."""
        with self._lock:
            return [*self._unbegun, *self._begun, *(delivery.event.id for delivery in self._finished)]

    def renewed(self, until: float, lost: Iterable[UUID]) -> None:
        """Ours for longer, but for those that somebody else has taken over: of them none may begin."""
        with self._lock:
            self.valid_until = until
            for id in lost:
                self._unbegun.pop(id, None)
