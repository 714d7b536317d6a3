"""Decide how many events may be sent to one destination now, and keep track of how the destination responds.

Delivery calls `DestinationThrottle.admit` before it sends events to a destination. It then reports the outcomes to the
`Admission` that it got. The throttle asks two limiters (`limiters.py`):

- `SharedLimiter`: the circuit breaker and the limits that all workers share.
- `ProcessLimiter`: how many batches this process may send to a destination that has no concurrency limit. It is asked
  only in a drain, that is, when a worker delivers batch after batch.

A *slot* is the right to have one call under way or, for a destination without a concurrency limit, one batch. A *probe*
is the one event that tests whether a destination whose circuit breaker is open can be reached again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import uuid4

from outbox.destinations.limits import Limits
from outbox.destinations.outcome import Outcome
from outbox.destinations.protocol import Destination
from outbox.errors import Unavailable
from outbox.text import visible
from outbox.throttle import concurrency_limit
from outbox.throttle.circuit_breaker import OPEN_TIMES, OpenTimes
from outbox.throttle.decision import Decision, Request
from outbox.throttle.delivery_mode import DeliveryMode
from outbox.throttle.limiters import ProcessLimiter, SharedLimiter
from outbox.throttle.rate_limit import HORIZON_SECONDS
from outbox.throttle.shared_state import StateStore
from outbox.throttle.stuck_calls import CallTracker, StuckCalls

logger = logging.getLogger(__name__)

# The measured speed is a moving average, in which the latest batch has this weight.
SPEED_WEIGHT = 1 / 3
# The measured speed puts events off for at most this factor times as long as it was measured, or at least for the time
# after it. Otherwise one slow call, such as the first one after a start, would put off the next events for minutes.
HORIZON_PER_MEASURED_SECOND = 2.0
LEAST_HORIZON_SECONDS = 5.0
NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class ThrottleTimes:
    """How long a thread waits for a slot, and how long a circuit breaker is open."""

    # How long `admit` waits for a free slot if all are taken.
    patience_seconds: float = 0.1
    # It does not wait if all calls began longer ago than this: no slot is likely to be free soon.
    began_lately_seconds: float = concurrency_limit.LEAST_WAIT
    # While it waits, it asks again at least this often, because another process may release a slot too.
    look_seconds: float = 0.02
    breaker: OpenTimes = OPEN_TIMES


TIMES = ThrottleTimes()


class DestinationThrottle:
    """Admits events to one destination, and measures whether it can be reached and how fast it is."""

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
        times: ThrottleTimes = TIMES,
    ) -> None:
        """`max_batches`: how many batches a process may send at the same time to a destination without a concurrency
        limit. `hold_seconds`: after this time, a call whose end was never reported no longer occupies its slot.
        `run_seconds`: calls that take longer count as stuck. `on_stuck` is called in a drain when such calls have taken
        all slots.
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
        self._times = times
        self._queue = SlotQueue(times.look_seconds)
        self._shared_limiter = SharedLimiter(name, self.limits, store, self._calls, clock, open_times=times.breaker)
        self._process_limiter = ProcessLimiter(name, max_batches, self._calls, clock)
        self._lock = threading.Lock()
        self._failures = 0  # how many times in a row this process could not reach the destination
        self._speed: float | None = None  # events a second, for each call that is made at the same time
        self._measured_seconds = 0.0
        # How often this process has opened the circuit breaker, or would have, if another worker had not been first.
        self.trips = 0
        # How often this process has seen it close: a probe succeeded, or an operator said so.
        self.closings = 0
        # When an operator last said that the destination can be reached again; False: `control` was not called yet.
        self._reached_at: datetime | bool | None = False

    def control(self, per_second: float | None, reached_at: datetime | None) -> None:
        """Apply an operator's decisions: a rate, and when the operator last said that the destination can be reached.

        A statement from before the first call in this process is ignored: the circuit breaker is closed, or has opened
        after the statement.
        """
        self._shared_limiter.limit_rate(per_second)
        if reached_at == self._reached_at:
            return
        is_news, self._reached_at = self._reached_at is not False and reached_at is not None, reached_at
        if is_news and self._shared_limiter.is_open:
            self._close_breaker("an operator says that the destination can be reached again")

    def admit(self, events: int, *, mode: DeliveryMode, on_wait: Callable[[], None] = lambda: None) -> Admission:
        """Return an Admission, which says how many of these events may be sent now.

        In a drain, at most as many events are admitted as the destination takes in about a second, and a destination
        without a concurrency limit gets at most `max_batches` batches of this process at the same time. If all slots
        are taken, `admit` waits up to `patience_seconds` for a free one, and calls `on_wait` before each wait.
        """
        holder = str(uuid4())
        if self._calls.all_slots_stuck(self._on_stuck if mode is DeliveryMode.DRAIN else lambda: None):
            stuck = Decision(0, limit_reached=True, wait_seconds=concurrency_limit.MOST_WAIT)
            return Admission(self, holder, mode, stuck)
        speed = self._speed if mode is DeliveryMode.DRAIN else None
        request = Request(holder, events, self._at_once, self._hold_seconds, speed, self._horizon_seconds)
        ends_at = time.monotonic() + self._times.patience_seconds
        with self._queue.waiting(holder):
            while True:
                changes, in_time = self._queue.changes, time.monotonic() < ends_at
                if self._queue.is_first(holder) or not in_time:
                    decision = self._decide(request, mode)
                    # A longer `wait_seconds` means that all calls began long ago: a slot is not likely to be free soon.
                    began_lately = decision.wait_seconds <= self._times.began_lately_seconds
                    may_be_free = decision.limit_reached and began_lately
                    if not may_be_free or not in_time:
                        return self._admission(holder, mode, decision)
                on_wait()
                self._queue.wait(changes)

    @property
    def _horizon_seconds(self) -> float:
        """Return for how long the measured speed may put off an event: the longer it was measured, the longer."""
        trusted = self._measured_seconds * HORIZON_PER_MEASURED_SECOND
        return min(max(trusted, LEAST_HORIZON_SECONDS), HORIZON_SECONDS)

    def _admission(self, holder: str, mode: DeliveryMode, decision: Decision) -> Admission:
        if decision.events:
            self._calls.begin(holder, decision.at_once)
        return Admission(self, holder, mode, decision)

    def _limits_batches(self, mode: DeliveryMode) -> bool:
        """Return whether the limit of this process applies."""
        return mode is DeliveryMode.DRAIN and self.limits.concurrency is None

    def _decide(self, request: Request, mode: DeliveryMode) -> Decision:
        """Decide by the state that all workers share, and in a drain also by the limit of this process."""
        if not self._limits_batches(mode):
            return self._shared_limiter.decide(request)
        local = self._process_limiter.decide(request)
        if local.limit_reached and not self._shared_limiter.is_open:
            return local
        # If the circuit breaker is open, the shared limiter is asked even if the limit of this process is reached. A
        # probe needs no slot: otherwise slow calls that hold all slots would keep the breaker open.
        asks_for_all = local.limit_reached or local.events == request.events
        shared = self._shared_limiter.decide(request if asks_for_all else replace(request, events=local.events))
        if shared.probe:
            return shared
        if not shared.events:
            self._process_limiter.release(request.holder)
            return shared
        return local if local.events <= shared.events else shared  # the stricter of the two

    def release(self, holder: str, mode: DeliveryMode) -> None:
        """Release the slots of a batch whose calls have returned."""
        self._calls.end(holder)
        if self.limits.concurrency is not None:
            self._shared_limiter.release(holder)
        elif self._limits_batches(mode):
            self._process_limiter.release(holder)
        self._queue.notify()
        self._shared_limiter.call_ended()

    def stuck(self) -> StuckCalls | None:
        """Return the calls of this process that have not returned in time; None if there are none."""
        return self._calls.stuck()

    @property
    def was_reached(self) -> bool:
        """Return whether no failure has been counted since this process last reached it, or opened its breaker."""
        return self._failures == 0

    def record_outcome(self, outcome: Outcome, *, probe: bool, is_late: bool = False) -> None:
        """Count the times in a row that the destination could not be reached, and open or close the circuit breaker.

        Any outcome but Unavailable means that the destination was reached. `is_late`: the event was sent before the
        breaker opened. Then its failure is known already, and is not counted.
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
            self._close_breaker("the destination was reached again")

    def _close_breaker(self, why: str) -> None:
        self._shared_limiter.close_breaker()
        with self._lock:
            self._failures = 0
            self.closings += 1
        logger.warning("The circuit breaker of %s is closed: %s", self.name, why)

    def _open_breaker(self, error: str, *, probe: bool) -> None:
        seconds = self._shared_limiter.open_breaker(error, probe=probe)
        with self._lock:
            self._failures = 0
            self.trips += 1
        if seconds is not None:
            logger.warning(
                "The circuit breaker of %s is open: no events are sent to the destination for %.0f seconds, since it "
                "could not be reached: %s",
                self.name,
                seconds,
                visible(error),
            )

    def cancel_probe(self) -> None:
        """Allow another probe at once, because this one was not sent."""
        self._shared_limiter.cancel_probe()

    def measure_speed(self, events: int, seconds: float, at_once: int) -> None:
        """Update the measured speed: `events` were delivered in `seconds`, with `at_once` calls at the same time."""
        speed = events / max(seconds, 1e-6) / max(at_once, 1)
        with self._lock:
            before = self._speed
            self._measured_seconds += seconds
            self._speed = speed if before is None else before + (speed - before) * SPEED_WEIGHT


class Admission:
    """Permission to send `events` events. The caller reports the outcomes, and calls `finish` at the end."""

    def __init__(self, throttle: DestinationThrottle, holder: str, mode: DeliveryMode, decision: Decision) -> None:
        self._throttle = throttle
        self._holder = holder
        self._mode = mode
        self._trips = throttle.trips
        self.decision = decision
        self.events = decision.events
        self.at_once = decision.at_once

    @property
    def is_withdrawn(self) -> bool:
        """Return whether this process has opened the circuit breaker since the admission.

        If so, the events that were not sent yet must not be sent.
        """
        return self._throttle.trips != self._trips

    @property
    def was_reached(self) -> bool:
        """Return whether another success tells the throttle nothing new, unless it is that of a probe."""
        return self._throttle.was_reached

    def record_outcome(self, outcome: Outcome) -> None:
        """Report the outcome of an event to the throttle."""
        if self._throttle.was_reached and not self.decision.probe and not isinstance(outcome, Unavailable):
            return  # the usual case: this changes nothing
        self._throttle.record_outcome(outcome, probe=self.decision.probe, is_late=self.is_withdrawn)

    def finish(self, events: int, seconds: float) -> None:
        """Release the slots, and report how many events got an outcome and how long they took."""
        if self.events:
            self._throttle.release(self._holder, self._mode)
        if events:
            self._throttle.measure_speed(events, seconds, self.at_once)
        elif self.decision.probe:
            self._throttle.cancel_probe()


class SlotQueue:
    """The threads of this process that wait for a free slot of one destination.

    First in, first out: otherwise a thread could take back the slot that it has just released, before the waiting
    threads have asked for it.
    """

    def __init__(self, look_seconds: float) -> None:
        self._look_seconds = look_seconds
        self._holders: deque[str] = deque()
        self._changed = threading.Condition()
        # Counts the calls of `notify`, so that one between asking for a slot and waiting is not lost.
        self.changes = 0

    @contextmanager
    def waiting(self, holder: str) -> Iterator[None]:
        """Keep the holder in the queue while the block runs."""
        with self._changed:
            self._holders.append(holder)
        try:
            yield
        finally:
            with self._changed:
                self._holders.remove(holder)
            self.notify()

    def is_first(self, holder: str) -> bool:
        """Return whether this holder is the first in the queue, and may ask for a slot."""
        return self._holders[0] == holder

    def wait(self, known_changes: int) -> None:
        """Wait until `changes` is no longer the number that the caller has read, or `look_seconds` have passed."""
        with self._changed:
            self._changed.wait_for(lambda: self.changes != known_changes, self._look_seconds)

    def notify(self) -> None:
        """Wake the waiting threads, because a slot was released or a thread has left the queue."""
        with self._changed:
            self.changes += 1
            self._changed.notify_all()
