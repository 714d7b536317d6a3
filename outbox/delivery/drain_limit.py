"""Limit how many drains run at the same time in a process: OUTBOX_DRAINS.

A wake-up that finds all slots taken does not wait for one, and so occupies no worker thread: it asks the drains that
are running to claim once more. A drain gives up its slot only in the same step in which it sees that no wake-up has
asked. So every event that was committed before a wake-up is seen by a claim that begins after the wake-up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class DrainLimit:
    """The slots for the drains of one process, and when one of them last began to claim.

    The fallback poller reads `claims_started` and `claim_started_at`, to see whether wake-ups still arrive.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._lock = threading.Lock()
        self._running = 0
        self._asked = False  # to claim once more
        self.claims_started = 0
        self.claim_started_at = clock()

    @contextmanager
    def slot(self) -> Iterator[Slot | None]:
        """Hold a slot inside the block; None if all are taken: then a running drain claims once more."""
        slot = self._acquire()
        try:
            yield slot
        finally:
            if slot is not None:
                self._release(slot)

    def _acquire(self) -> Slot | None:
        with self._lock:
            if self._running >= self._most:
                self._asked = True
                return None
            self._running += 1
            return Slot(self)

    def _release(self, slot: Slot) -> None:
        with self._lock:
            if slot.held:
                slot.held = False
                self._running -= 1

    def _claim_starts(self) -> None:
        with self._lock:
            self._asked = False  # this claim sees all events that were committed until now
            self.claims_started += 1
            self.claim_started_at = self._clock()

    def _release_unless_asked(self, slot: Slot) -> bool:
        with self._lock:
            if self._asked:
                return False
            slot.held = False
            self._running -= 1
            return True


class Slot:
    """The right of one drain to run."""

    def __init__(self, limit: DrainLimit) -> None:
        self._limit = limit
        self.held = True

    def claim_starts(self) -> None:
        """Note that a claim begins now: it does what every wake-up that was refused before has asked for."""
        self._limit._claim_starts()

    def release(self) -> bool:
        """Give up the slot and return True; or keep it and return False, if a wake-up was refused since that claim."""
        return self._limit._release_unless_asked(self)
