"""The throttle of one destination in this process: how many events it may be sent now.

Before events are sent to a destination, delivery asks its throttle (`admit`), and then reports the outcomes to it. The
throttle applies the circuit breaker and the limits that all workers share, and in a worker the limit of this process
(both in `limiters`).

A *slot* is the right to have one call under way. A destination without a concurrency limit has a slot for each of the
batches that this process may send to it at the same time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from uuid import uuid4

from outbox.destinations.limits import Limits
from outbox.destinations.outcome import Outcome
from outbox.destinations.protocol import Destination
from outbox.errors import Unavailable
from outbox.throttle import concurrency_limit
from outbox.throttle.decision import Decision, Request
from outbox.throttle.delivery_mode import DeliveryMode
from outbox.throttle.limiters import ProcessLimiter, SharedLimiter
from outbox.throttle.shared_state import StateStore
from outbox.throttle.stuck_calls import CallTracker, StuckCalls

logger = logging.getLogger(__name__)

# When all slots are taken, how long to wait for one that may be released in a moment.
PATIENCE_SECONDS = 0.1
# How long a thread waits at most before it looks again: a slot may also be released by another process.
LOOK_SECONDS = 0.02
# How fast the measured speed follows: each batch counts for a third.
WEIGHT = 1 / 3
NO_LIMITS = Limits()


class DestinationThrottle:
    """Admits events to one destination, and follows whether it can be reached and how fast it is."""

    def __init__(
        self,
        destination: Destination,
        store: StateStore,
        clock: Callable[[], float] = time.monotonic,
        *,
        max_batches: int,
        hold_seconds: float,
        run_seconds: float | None = None,
        on_stuck: Callable[[], None] = lambda: None,
    ) -> None:
        """`max_batches`: how many batches a process may send at the same time to a destination without a concurrency
        limit. `hold_seconds`: how long calls count if their end is never reported. `run_seconds`: calls that take
        longer are stuck. `on_stuck` is called in a drain when such calls have taken all slots.
        """
        limits: Limits | None = getattr(destination, "limits", None)
        self.name = name = destination.name
        self.limits = NO_LIMITS if limits is None else limits
        self._at_once: int = getattr(destination, "at_once", 1)
        self._hold_seconds: float = getattr(destination, "hold_seconds", hold_seconds)
        self._on_stuck = on_stuck
        self._calls = CallTracker(
            name,
            clock,
            run_seconds=hold_seconds if run_seconds is None else run_seconds,
            hold_seconds=self._hold_seconds,
            max_calls=self.limits.concurrency,
            max_batches=max_batches,
        )
        self._queue = SlotQueue()
        self._shared_limiter = SharedLimiter(name, self.limits, store, self._calls, clock)
        self._process_limiter = ProcessLimiter(name, max_batches, self._calls, clock)
        self._lock = threading.Lock()
        self._failures = 0  # how many times in a row this process could not reach the destination
        self._speed: float | None = None  # the events a second that one call at a time does
        self.trips = 0  # how often this process has opened the circuit breaker, or found that it should

    def admit(self, events: int, *, mode: DeliveryMode, on_wait: Callable[[], None] = lambda: None) -> Admission:
        """Return how many of these events may be sent now.

        In a drain that is no more than about a second's work, and a process sends at most `max_batches` batches at the
        same time to a destination without a concurrency limit. If all slots are taken, this waits a moment for a free
        one; `on_wait` is called before each wait.
        """
        holder = str(uuid4())
        if self._calls.all_slots_stuck(self._on_stuck if mode is DeliveryMode.DRAIN else lambda: None):
            return Admission(self, holder, Decision(0, limit_reached=True, wait_seconds=concurrency_limit.MOST_WAIT))
        speed = self._speed if mode is DeliveryMode.DRAIN else None
        request = Request(holder, events, self._at_once, self._hold_seconds, speed)
        ends_at = time.monotonic() + PATIENCE_SECONDS
        with self._queue.waiting(holder):
            while True:
                changes, in_time = self._queue.changes, time.monotonic() < ends_at
                if self._queue.is_first(holder) or not in_time:
                    decision = self._decide(request, mode)
                    # A longer wait means that the slots have been taken for long: none will be free in a moment.
                    may_be_free = decision.limit_reached and decision.wait_seconds <= concurrency_limit.LEAST_WAIT
                    if not may_be_free or not in_time:
                        return self._admission(holder, decision)
                on_wait()
                self._queue.wait(changes)

    def _admission(self, holder: str, decision: Decision) -> Admission:
        if decision.events:
            self._calls.begin(holder, decision.at_once)
        return Admission(self, holder, decision)

    def _decide(self, request: Request, mode: DeliveryMode) -> Decision:
        """Decide by the limit of this process, in a drain, and by the state that all workers share."""
        if mode is not DeliveryMode.DRAIN or self.limits.concurrency is not None:
            return self._shared_limiter.decide(request)
        own = self._process_limiter.decide(request)
        if own.limit_reached and not self._shared_limiter.is_open:
            return own
        # A probe needs no slot: all of them may be taken by calls that take long.
        is_whole = own.limit_reached or own.events == request.events
        shared = self._shared_limiter.decide(request if is_whole else replace(request, events=own.events))
        if shared.probe:
            return shared
        if not shared.events:
            self._process_limiter.release(request.holder)
            return shared
        return own if own.events <= shared.events else shared

    def release(self, holder: str) -> None:
        """Release the slots of a batch whose calls have returned."""
        self._calls.end(holder)
        if self.limits.concurrency is not None:
            self._shared_limiter.release(holder)
        else:
            self._process_limiter.release(holder)
        self._queue.notify()

    def stuck(self) -> StuckCalls | None:
        """Return the calls of this process that have not returned in time; None if there are none."""
        return self._calls.stuck()

    @property
    def was_reached(self) -> bool:
        """Return whether this process reached the destination the last time."""
        return self._failures == 0

    def record_outcome(self, outcome: Outcome, *, probe: bool, is_late: bool = False) -> None:
        """Count the times in a row that the destination could not be reached, and open or close the circuit breaker.

        Any outcome but Unavailable means that it was reached. `is_late`: the event was sent before the breaker opened,
        so that it could not reach the destination says nothing new.
        """
        if isinstance(outcome, Unavailable):
            if is_late:
                return
            with self._lock:
                self._failures += 1
                enough = self.limits.open_after is not None and self._failures >= self.limits.open_after
            if probe or enough:
                self._open_breaker(outcome.error, probe=probe)
            return
        with self._lock:
            self._failures = 0
        if probe:
            self._shared_limiter.close_breaker()
            logger.warning("The circuit breaker of %s is closed: it was reached again", self.name)

    def _open_breaker(self, error: str, *, probe: bool) -> None:
        seconds = self._shared_limiter.open_breaker(error, probe=probe)
        with self._lock:
            self._failures = 0
            self.trips += 1
        if seconds is not None:
            logger.warning(
                "The circuit breaker of %s is open: no events are sent to it for %.0f seconds, since it could not be "
                "reached: %s",
                self.name,
                seconds,
                error,
            )

    def cancel_probe(self) -> None:
        """Allow another probe at once, because this one was not sent."""
        self._shared_limiter.cancel_probe()

    def measure_speed(self, events: int, seconds: float, at_once: int) -> None:
        """Follow how fast the destination is: so many events took so long, with so many calls at the same time."""
        speed = events / max(seconds, 1e-6) / max(at_once, 1)
        with self._lock:
            before = self._speed
            self._speed = speed if before is None else before + (speed - before) * WEIGHT


class Admission:
    """How many events may be sent to a destination; the caller reports the outcomes, and calls `finish` at the end."""

    def __init__(self, throttle: DestinationThrottle, holder: str, decision: Decision) -> None:
        self._throttle = throttle
        self._holder = holder
        self._trips = throttle.trips
        self.decision = decision
        self.events = decision.events
        self.at_once = decision.at_once

    @property
    def is_withdrawn(self) -> bool:
        """Return whether this process has opened the circuit breaker since: events that wait must not be sent."""
        return self._throttle.trips != self._trips

    def record_outcome(self, outcome: Outcome) -> None:
        """Tell the throttle what became of an event."""
        if self._throttle.was_reached and not self.decision.probe and not isinstance(outcome, Unavailable):
            return  # the usual case: the throttle learns nothing new
        self._throttle.record_outcome(outcome, probe=self.decision.probe, is_late=self.is_withdrawn)

    def finish(self, events: int, seconds: float) -> None:
        """Release the slots; so many events got an outcome, and took so long."""
        if self.events:
            self._throttle.release(self._holder)
        if events:
            self._throttle.measure_speed(events, seconds, self.at_once)
        elif self.decision.probe:
            self._throttle.cancel_probe()


class SlotQueue:
    """The threads of this process that wait for a free slot of one destination.

    First in, first out: otherwise a thread could take back the slot that it has just released, before the threads that
    wait have looked.
    """

    def __init__(self) -> None:
        self._holders: deque[str] = deque()
        self._changed = threading.Condition()
        # Counts the changes, so that none is missed between a look and the wait that follows.
        self.changes = 0

    @contextmanager
    def waiting(self, holder: str) -> Iterator[None]:
        """Stand in the queue for the length of the block."""
        with self._changed:
            self._holders.append(holder)
        try:
            yield
        finally:
            with self._changed:
                self._holders.remove(holder)
            self.notify()

    def is_first(self, holder: str) -> bool:
        """Return whether this holder is the first in the queue: only the first looks for a slot."""
        return self._holders[0] == holder

    def wait(self, known_changes: int) -> None:
        """Wait for a change beyond those that the caller knows of, for a moment at most."""
        with self._changed:
            self._changed.wait_for(lambda: self.changes != known_changes, LOOK_SECONDS)

    def notify(self) -> None:
        """Wake the threads that wait: a slot was released, or a thread has left the queue."""
        with self._changed:
            self.changes += 1
            self._changed.notify_all()
