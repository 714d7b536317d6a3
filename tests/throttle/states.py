"""Changes of a state that tests apply to stores."""

from collections.abc import Callable
from dataclasses import replace

from outbox.destinations.limits import Limits
from outbox.throttle.decision import Decision, Request, decide
from outbox.throttle.shared_state import ThrottleState

NAME = "the destination"
ONE = Limits(concurrency=1)


def count(state: ThrottleState, now: float) -> tuple[ThrottleState, int]:
    return replace(state, trips=state.trips + 1), state.trips + 1


def look(state: ThrottleState, now: float) -> tuple[ThrottleState, ThrottleState]:
    return state, state


def read_clock(state: ThrottleState, now: float) -> tuple[ThrottleState, float]:
    return state, now


def begin_call(holder: str) -> Callable[[ThrottleState, float], tuple[ThrottleState, Decision]]:
    return lambda state, now: decide(state, now, Request(holder, 1), ONE)
