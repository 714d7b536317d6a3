"""Decide how many events a destination may be sent now, by its circuit breaker, concurrency limit and rate limit."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from outbox.destinations.limits import Limits
from outbox.throttle import circuit_breaker, concurrency_limit, rate_limit
from outbox.throttle.circuit_breaker import OPEN_TIMES, OpenTimes
from outbox.throttle.shared_state import ActiveCalls, ThrottleState


@dataclass(frozen=True, slots=True)
class Request:
    """A worker wants to send a batch of events to a destination."""

    holder: str  # the id under which the calls of the batch are counted
    events: int
    at_once: int = 1  # how many calls it would make at the same time
    hold_seconds: float = 60.0  # how long the calls count if the worker never reports their end
    # How many events a second were measured with one call at a time. It limits the batch to a second of work.
    speed: float | None = None
    # No event is put off for longer than this because of that speed.
    horizon_seconds: float = rate_limit.HORIZON_SECONDS


@dataclass(frozen=True, slots=True)
class Decision:
    """How many events may be sent now, with how many calls at the same time, and when to try the other events."""

    events: int
    at_once: int = 0
    probe: bool = False  # the one event tests whether a destination with an open circuit breaker can be reached
    breaker_open: bool = False
    limit_reached: bool = False  # too many calls are under way
    wait_seconds: float = 0.0  # how long to put off the first of the other events
    step_seconds: float = 0.0  # how much longer to put off each event after it
    horizon_seconds: float = rate_limit.HORIZON_SECONDS  # the longest that any of them is put off

    def delay_seconds(self, number: int) -> float:
        """Return how long to put off one of the events that may not be sent now, by its number, from 0 on."""
        return min(self.wait_seconds + number * self.step_seconds, self.horizon_seconds)


def decide(
    state: ThrottleState, now: float, request: Request, limits: Limits, open_times: OpenTimes = OPEN_TIMES
) -> tuple[ThrottleState, Decision]:
    """Return the decision on a request, and the state after it."""
    if state.is_open:
        return _decide_open(state, now, request, limits, open_times)
    state = concurrency_limit.drop_expired(state, now)
    calls = min(request.at_once, request.events)
    if limits.concurrency is not None:
        free = limits.concurrency - concurrency_limit.calls_under_way(state)
        if free <= 0:
            wait = concurrency_limit.wait_seconds(state, now)
            return state, Decision(0, limit_reached=True, wait_seconds=wait)
        calls = min(calls, free)
    rate = rate_limit.lowest(limits.per_second, circuit_breaker.ramp_up_rate(state, now))
    second_of_work = request.events if request.speed is None else max(calls, math.ceil(request.speed * calls))
    events, state = rate_limit.take(state, now, min(request.events, second_of_work), rate)
    if events and limits.concurrency is not None:
        calls = min(calls, events)
        state = concurrency_limit.hold(state, {request.holder: ActiveCalls(calls, now, now + request.hold_seconds)})
    # The rest is scheduled at the speed of all calls that the limit allows, because the calls that are under way now
    # will have ended by then.
    all_calls = calls if limits.concurrency is None else limits.concurrency
    speed = None if request.speed is None else request.speed * all_calls
    slower = rate_limit.lowest(rate, speed)
    horizon = rate_limit.HORIZON_SECONDS if slower == rate else request.horizon_seconds
    decision = Decision(events, calls, horizon_seconds=horizon)
    return _put_off_rest(state, now, request.events - events, decision, slower)


def _decide_open(
    state: ThrottleState, now: float, request: Request, limits: Limits, open_times: OpenTimes
) -> tuple[ThrottleState, Decision]:
    """Allow one event, the probe, if the circuit breaker was open for long enough and no other probe is under way."""
    probe_at = max(state.open_until, state.next_at if limits.per_second is not None else 0.0)
    if now < probe_at:
        wait = min(probe_at - now, open_times.cap_seconds)
        return state, Decision(0, breaker_open=True, wait_seconds=wait)
    _, state = rate_limit.take(state, now, 1, limits.per_second)
    probing = circuit_breaker.begin_probe(state, now, request.hold_seconds)
    wait = open_times.after(state.trips)
    return probing, Decision(1, at_once=1, probe=True, breaker_open=True, wait_seconds=wait)


def _put_off_rest(
    state: ThrottleState, now: float, waiting: int, decision: Decision, rate: float | None
) -> tuple[ThrottleState, Decision]:
    """Schedule the `waiting` events, which may not be sent now, at this rate; without a rate they need no schedule."""
    if not waiting or rate is None:
        return state, decision
    horizon = decision.horizon_seconds
    state, wait, step = rate_limit.enqueue(state, now, waiting, decision.events, rate, horizon_seconds=horizon)
    return state, replace(decision, wait_seconds=wait, step_seconds=step)
