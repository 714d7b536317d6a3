"""Limit how many drains run at the same time in a process: OUTBOX_DRAINS.

A wake-up is a message that tells a worker that events are due: the worker starts a drain. If all slots are taken, the
wake-up does not wait for one, so that it occupies no worker thread. Instead it requests one more claim from the drains
that are running. A drain checks for such a request, and releases its slot if there is none, under one lock. So every
event that was committed before a wake-up is seen by a claim that begins after the wake-up.
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
        self._lock = threading.Condition(threading.Lock())
        self._running = 0
        self._claim_requested = False
        self.claims_started = 0
        self.claim_started_at = clock()

    @contextmanager
    def slot(self) -> Iterator[Slot | None]:
        """Hold a slot inside the block; if all are taken, yield None and request a claim from a running drain."""
        slot = self._acquire()
        try:
            yield slot
        finally:
            if slot is not None:
                self._release(slot)

    def wait_for_slot(self, seconds: float) -> bool:
        """Wait until a slot is free, for at most this many seconds; return whether one is."""
        with self._lock:
            return self._lock.wait_for(lambda: self._running < self._most, seconds)

    def _acquire(self) -> Slot | None:
        with self._lock:
            if self._running >= self._most:
                self._claim_requested = True
                return None
            self._running += 1
            return Slot(self)

    def _release(self, slot: Slot) -> None:
        with self._lock:
            if slot.held:
                self._free(slot)

    def _claim_starts(self) -> None:
        with self._lock:
            self._claim_requested = False  # this claim sees all events that were committed until now
            self.claims_started += 1
            self.claim_started_at = self._clock()

    def _release_unless_requested(self, slot: Slot) -> bool:
        with self._lock:
            if self._claim_requested:
                return False
            self._free(slot)
            return True

    def _free(self, slot: Slot) -> None:
        slot.held = False
        self._running -= 1
        self._lock.notify()


class Slot:
    """The right of one drain to run."""

    def __init__(self, limit: DrainLimit) -> None:
        self._limit = limit
        self.held = True

    def claim_starts(self) -> None:
        """Record that a claim begins now. It also serves all wake-ups that found no slot until now."""
        self._limit._claim_starts()

    def release(self) -> bool:
        """Release the slot and return True; if a wake-up found no slot since the last claim, keep it, return False."""
        return self._limit._release_unless_requested(self)
