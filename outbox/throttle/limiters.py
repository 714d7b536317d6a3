"""The two limiters of a destination: one that all workers share, and one of this process.

A limiter decides how many events of a batch may be sent now. `destination_throttle` asks both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from outbox.destinations.limits import Limits
from outbox.throttle import circuit_breaker, concurrency_limit, rate_limit
from outbox.throttle.circuit_breaker import OPEN_TIMES, OpenTimes
from outbox.throttle.decision import Decision, Request, decide
from outbox.throttle.shared_state import LocalStore, StateStore, ThrottleState
from outbox.throttle.stuck_calls import CallTracker

# For a destination without limits, the state says only whether the circuit breaker is open or has just closed. While it
# is healthy, a process reads the state only this often.
HEALTH_CHECK_SECONDS = 1.0


class SharedLimiter:
    """Applies the limits and the circuit breaker of the destination, by the state that all workers share.

    Without Redis the state is shared by the threads of this process.
    """

    def __init__(
        self,
        name: str,
        limits: Limits,
        store: StateStore,
        calls: CallTracker,
        clock: Callable[[], float],
        *,
        open_times: OpenTimes = OPEN_TIMES,
    ) -> None:
        self._name = name
        # The limits that the destination was declared with, and those that apply now.
        self._declared = self._limits = limits
        # The rate that an operator has set.
        self._rate: float | None = None
        self._is_limited = limits.concurrency is not None or limits.per_second is not None
        self._store = store
        self._calls = calls
        self._clock = clock
        self._open_times = open_times
        # Until when the state need not be read again, if the destination has no limits; 0 if it was not healthy.
        self._healthy_until = 0.0
        # Whether an event was allowed without reading the state, although it was time to read it.
        self._has_to_read = False
        # Whether the circuit breaker was open when the state was last read or changed by this process.
        self.is_open = False

    def limit_rate(self, per_second: float | None) -> None:
        """Apply the rate that an operator has set, if it is lower than the declared one; None ends that.

        Events that are put off from now on get a new schedule: that of the other rate may reach minutes ahead.
        """
        if per_second == self._rate:
            return
        self._rate = per_second
        lowest = rate_limit.lowest(self._declared.per_second, per_second)
        self._limits = replace(self._declared, per_second=lowest)
        self._is_limited = self._limits.concurrency is not None or lowest is not None
        self._healthy_until = 0.0
        self._store.update(self._name, lambda state, now: (rate_limit.restarted(state, now), None))

    def decide(self, request: Request) -> Decision:
        """Return how many events of a batch may be sent now, and count its calls if the concurrency is limited."""
        if self._is_limited or not self._needs_no_state(request):
            return self._store.update(self._name, lambda state, now: self._decide_by(state, now, request))
        return _allow_all(request)

    def _needs_no_state(self, request: Request) -> bool:
        """Return whether the destination is healthy, as far as this process knows.

        An event that comes alone does not wait for the state, which is read after its call (`call_ended`). If another
        worker has opened the circuit breaker since, this process sends one event before it knows.
        """
        if self._clock() < self._healthy_until:
            return True
        if not self._healthy_until or request.events != 1 or self._has_to_read:
            return False
        self._has_to_read = True
        return True

    def call_ended(self) -> None:
        """Read the state if an event was sent without it."""
        if self._has_to_read:
            self._store.update(self._name, lambda state, now: (state, self._remember(state, now)))

    def _decide_by(self, state: ThrottleState, now: float, request: Request) -> tuple[ThrottleState, Decision]:
        """Return the state after the decision, and the decision."""
        is_healthy = self._remember(state, now)
        if is_healthy and not self._is_limited:
            return state, _allow_all(request)
        if self._limits.concurrency is not None:
            state = self._calls.keep_held(state, now)
        return decide(state, now, request, self._limits, self._open_times)

    def _remember(self, state: ThrottleState, now: float) -> bool:
        """Remember whether the circuit breaker is open, and for how long it counts as healthy; return whether it is."""
        is_healthy = circuit_breaker.is_healthy(state, now)
        self.is_open = state.is_open
        self._healthy_until = self._clock() + HEALTH_CHECK_SECONDS if is_healthy else 0.0
        self._has_to_read = False
        return is_healthy

    def release(self, holder: str) -> None:
        """Stop counting the calls of a batch."""
        self._store.release(self._name, lambda state, _: (concurrency_limit.release(state, holder), None))

    def open_breaker(self, error: str, *, probe: bool) -> float | None:
        """Open the circuit breaker, because a batch or a `probe` could not reach the destination.

        Return for how many seconds it is open; None if another worker had opened it already.
        """

        def trip(state: ThrottleState, now: float) -> tuple[ThrottleState, float | None]:
            after = circuit_breaker.trip(state, now, error, probe=probe, open_times=self._open_times)
            return after, None if after == state else after.open_until - now

        seconds = self._store.update(self._name, trip)
        self._healthy_until, self.is_open = 0.0, True
        return seconds

    def close_breaker(self) -> None:
        """Close the circuit breaker, because a probe has reached the destination."""
        self._store.update(self._name, lambda state, now: (circuit_breaker.recover(state, now), None))
        self._healthy_until, self.is_open = 0.0, False

    def cancel_probe(self) -> None:
        """Allow another probe at once, because this one was not sent."""
        self._store.update(self._name, lambda state, now: (circuit_breaker.cancel_probe(state, now), None))


class ProcessLimiter:
    """Limits how many batches this process sends to the destination at the same time, each to about a second's work.

    It is used in a worker, for a destination without a concurrency limit of its own. Otherwise a slow destination would
    take more and more threads of the process. A batch has one slot, however many calls it makes at the same time.
    """

    def __init__(self, name: str, max_batches: int, calls: CallTracker, clock: Callable[[], float]) -> None:
        self._name = name
        self._limits = Limits(concurrency=max_batches, open_after=None)
        self._calls = calls
        self._store = LocalStore(clock)

    def decide(self, request: Request) -> Decision:
        """Return how many events of a batch may be sent now. If any may, the batch takes a slot."""
        calls = min(request.at_once, request.events)
        speed = None if request.speed is None else request.speed * calls
        batch = replace(request, at_once=1, speed=speed)
        decision = self._store.update(
            self._name,
            lambda state, now: decide(self._calls.keep_held(state, now), now, batch, self._limits),
        )
        at_once = min(request.at_once, decision.events)
        return decision if at_once == decision.at_once else replace(decision, at_once=at_once)

    def release(self, holder: str) -> None:
        """Release the slot of a batch, if it has one."""
        self._store.update(self._name, lambda state, _: (concurrency_limit.release(state, holder), None))


def _allow_all(request: Request) -> Decision:
    return Decision(request.events, min(request.at_once, request.events))
