"""Solitude: a suspect is alone, in its batch and in its process.

An event that kills its worker takes along whatever else that process had in flight. So a suspect is claimed only when
no other batch is in flight here, and in its first seconds none begins. After those it is a call that takes long: other
events begin beside it, so that a call that hangs does not stop its process. Suspects still go one at a time, unless
one of them takes very long. A claim that was refused on a suspect's account is made up for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from outbox.delivery.batch import Batch

# How long to wait for the others to finish: batches are about a second's work. What has been in flight for longer is a
# call that takes long; the suspect goes ahead in its company, rather than never, and without holding up anybody.
PATIENCE_SECONDS = 1.5
# How long nothing begins beside a suspect: what kills its worker does so at once.
ALONE_SECONDS = 2.0

Claim = Callable[[bool], Batch | None]


class Solitude:
    """Keeps count of the batches in flight in this process, and makes room for suspects."""

    def __init__(self, look_every: float) -> None:
        # While others are always in flight, suspects are looked for this often all the same. And a suspect that has
        # been in flight for as long keeps no other from its turn.
        self._look_every = look_every
        self._looked_at = time.monotonic()
        self._changed = threading.Condition()
        self._in_flight: dict[object, float] = {}  # since when
        self._looking: int | None = None  # the thread that looks for suspects
        self._suspects: dict[object, float] = {}  # those in flight, and since when
        self._turned_away = False

    @contextmanager
    def flight(self, claim: Claim, make_up: Callable[[float], None]) -> Iterator[Batch | None]:
        """Claim a batch - `claim` is told whether it may be a suspect - and hold its place inside the block.

        `make_up` is told in how many seconds to claim again, since nothing could be claimed now.
        """
        place = object()
        batch = self._take_off(place, claim, make_up)
        try:
            yield batch
        finally:
            if batch is not None and self._land(place):
                make_up(0.0)

    def wait_until_empty(self, seconds: float) -> bool:
        """Whether nothing is in flight any more, after so long at most."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._in_flight, seconds)

    def _take_off(self, place: object, claim: Claim, make_up: Callable[[float], None]) -> Batch | None:
        me = threading.get_ident()
        with self._changed:
            if self._looking == me:
                return None  # a callback inside our own claim
            # A look takes no longer than a claim, and what commits meanwhile must not go unseen: wait, then claim.
            self._changed.wait_for(lambda: self._looking is None)
            if (alone := self._seconds_alone()) > 0:
                self._turned_away = True
                make_up(alone)
                return None
            look = self._may_look(place)
            self._looking = me if look else None
            self._in_flight[place] = time.monotonic()
        batch = None
        try:
            if look:
                self._wait_for_the_others(place)
            batch = claim(look)
            return batch
        finally:
            self._note(place, batch, looked=look)

    def _seconds_alone(self) -> float:
        """Return for how many more seconds nothing may begin beside the newest suspect."""
        newest = max(self._suspects.values(), default=None)
        return 0.0 if newest is None else newest + ALONE_SECONDS - time.monotonic()

    def _may_look(self, place: object) -> bool:
        """Return whether this claim may take a suspect."""
        now = time.monotonic()
        if any(now - since < self._look_every for since in self._suspects.values()):
            return False  # it may take the other along, should it kill this process after all
        return not self._company(place) or now - self._looked_at >= self._look_every

    def _wait_for_the_others(self, place: object) -> None:
        with self._changed:
            while company := self._company(place):
                self._changed.wait(min(company) + PATIENCE_SECONDS - time.monotonic())

    def _company(self, place: object) -> list[float]:
        """Since when the others are in flight, but for those that take long."""
        recent = time.monotonic() - PATIENCE_SECONDS
        return [since for other, since in self._in_flight.items() if other is not place and since > recent]

    def _note(self, place: object, batch: Batch | None, *, looked: bool) -> None:
        with self._changed:
            if looked:
                self._looking = None
                if batch is not None and batch.suspect:
                    self._suspects[place] = time.monotonic()
                else:
                    self._looked_at = time.monotonic()
            if batch is None:
                del self._in_flight[place]
            self._changed.notify_all()

    def _land(self, place: object) -> bool:
        """Return whether a claim was refused on its account."""
        with self._changed:
            del self._in_flight[place]
            suspect = self._suspects.pop(place, None) is not None
            turned_away = suspect and self._turned_away
            if suspect:
                self._turned_away = False
            self._changed.notify_all()
            return turned_away
