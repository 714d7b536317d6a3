"""Solitude: a suspect is alone, in its batch and in its process.

An event that kills its worker takes along whatever else that process had in flight. So a suspect is claimed only when
no other batch is in flight here, and while it is, none begins. Whoever was turned away meanwhile is made up for.
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

Claim = Callable[[bool], Batch | None]


class Solitude:
    """Keeps count of the batches in flight in this process, and makes room for suspects."""

    def __init__(self, look_every: float) -> None:
        # While others are always in flight, suspects are looked for this often all the same.
        self._look_every = look_every
        self._looked_at = time.monotonic()
        self._changed = threading.Condition()
        self._in_flight: dict[object, float] = {}  # since when
        self._looking: int | None = None  # the thread that looks for suspects
        self._suspect = False
        self._turned_away = False

    @contextmanager
    def flight(self, claim: Claim, make_up: Callable[[], None]) -> Iterator[Batch | None]:
        """Claim a batch - `claim` is told whether it may be a suspect - and hold its place inside the block."""
        place = object()
        batch = self._take_off(place, claim)
        try:
            yield batch
        finally:
            if batch is not None and self._land(place, batch):
                make_up()

    def wait_until_empty(self, seconds: float) -> bool:
        """Whether nothing is in flight any more, after so long at most."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._in_flight, seconds)

    def _take_off(self, place: object, claim: Claim) -> Batch | None:
        me = threading.get_ident()
        with self._changed:
            if self._looking == me:
                return None  # a callback inside our own claim
            # A look takes no longer than a claim, and what commits meanwhile must not go unseen: wait, then claim.
            self._changed.wait_for(lambda: self._looking is None)
            if self._suspect:
                self._turned_away = True
                return None
            look = not self._company(place) or time.monotonic() - self._looked_at >= self._look_every
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
                self._suspect = batch is not None and batch.suspect
                if not self._suspect:
                    self._looked_at = time.monotonic()
            if batch is None:
                del self._in_flight[place]
            self._changed.notify_all()

    def _land(self, place: object, batch: Batch) -> bool:
        """Whether somebody was turned away on its account."""
        with self._changed:
            del self._in_flight[place]
            turned_away = batch.suspect and self._turned_away
            if batch.suspect:
                self._suspect = self._turned_away = False
            self._changed.notify_all()
            return turned_away
