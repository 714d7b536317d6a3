"""Workers that share the throttle of a destination, as pure decisions: what tests ask, and what they check."""

from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from outbox.destinations.limits import Limits
from outbox.throttle.circuit_breaker import (
    recover,
    trip,
)
from outbox.throttle.concurrency_limit import release
from outbox.throttle.decision import Decision, Request, decide
from outbox.throttle.rate_limit import BURST_SECONDS
from outbox.throttle.shared_state import ActiveCalls, ThrottleState

# The time at which a test begins: by a process's own clock, and by Redis's.
ORIGINS = st.sampled_from([0.0, 123_456.789, 1.8e9])
PAUSES = st.sampled_from([0.0, 0.001, 0.02, 0.1, 0.5, 1.0, 3.0, 7.0, 61.0]) | st.floats(0, 100)
HOLD_SECONDS = 20.0
FREE = Limits()


def asking(events: int = 1, at_once: int = 1, *, holder: str = "me", speed: float | None = None) -> Request:
    return Request(holder, events, at_once, HOLD_SECONDS, speed)


def opened(now: float = 0.0, *, times: int = 1) -> ThrottleState:
    """Return a state whose breaker has just opened, so many times in a row."""
    state = ThrottleState()
    for _ in range(times):
        state = trip(state, now, "refused", probe=True)
    return state


class Fleet:
    """Workers that request events, end their calls, and open and close the breaker; and what they were allowed."""

    def __init__(self, limits: Limits, origin: float = 0.0) -> None:
        self.limits = limits
        self.state = ThrottleState()
        self.now = origin
        self.holding: dict[str, ActiveCalls] = {}
        self.admitted: list[tuple[float, int]] = []
        self.recovered_at: float | None = None
        self._names = (f"worker {number}" for number in range(1_000_000))

    def ask(self, events: int, at_once: int = 1, speed: float | None = None) -> Decision:
        holder = next(self._names)
        request = asking(events, at_once, holder=holder, speed=speed)
        self.state, decision = decide(self.state, self.now, request, self.limits)
        if decision.events:
            self.admitted.append((self.now, decision.events))
            if not decision.probe:
                self.holding[holder] = ActiveCalls(decision.at_once, self.now, self.now + HOLD_SECONDS)
        return decision

    def leave(self, number: int) -> None:
        if self.holding:
            holder = list(self.holding)[number % len(self.holding)]
            del self.holding[holder]
            self.state = release(self.state, holder)

    def trip(self, *, probe: bool) -> None:
        self.state = trip(self.state, self.now, "refused", probe=probe)

    def recover(self) -> None:
        self.state = recover(self.state, self.now)
        self.recovered_at = self.now

    def calls(self) -> int:
        """Return how many calls are under way whose time is not over."""
        return sum(each.calls for each in self.holding.values() if each.until > self.now)

    def play(self, steps: list[tuple[float, str, Any]]) -> Iterator[Decision]:
        """Take steps, each with a pause, an action and its argument; yield the decisions on requests."""
        for pause, what, argument in steps:
            self.now += pause
            if what == "ask":
                yield self.ask(*argument)
            elif what == "leave":
                self.leave(argument)
            elif what == "trip":
                self.trip(probe=argument)
            else:
                self.recover()


ASK = st.tuples(st.just("ask"), st.tuples(st.integers(1, 500), st.integers(1, 20)))
ASK_AT_SPEED = st.tuples(
    st.just("ask"), st.tuples(st.integers(1, 500), st.integers(1, 20), st.none() | st.floats(1e-3, 1e6))
)
LEAVE = st.tuples(st.just("leave"), st.integers(0, 100))
BREAK = st.tuples(st.just("trip"), st.booleans()) | st.just(("recover", None))


def steps(*kinds: st.SearchStrategy[tuple[str, Any]]) -> st.SearchStrategy[list[tuple[float, str, Any]]]:
    """Generate lists of steps of these kinds, each after a pause."""
    step = st.tuples(PAUSES, st.one_of(*kinds)).map(lambda pair: (pair[0], *pair[1]))
    return st.lists(step, max_size=40)


def assert_within(admitted: list[tuple[float, int]], per_second: float) -> None:
    """Assert that no period has seen more events than the rate and one burst allow."""
    burst = max(1.0, per_second * BURST_SECONDS)
    for first, (began_at, _) in enumerate(admitted):
        events = 0
        for at, number in admitted[first:]:
            events += number
            assert events <= per_second * (at - began_at) * 1.001 + burst + 1 + 1e-3


PLACES = st.builds(ActiveCalls, st.integers(1, 100), st.floats(0, 4e9), st.floats(0, 4e9))
STATES = st.builds(
    ThrottleState,
    trips=st.integers(0, 10**30),
    open_until=st.floats(0, 4e9),
    error=st.text(),
    recovered_at=st.none() | st.floats(0, 4e9),
    active_calls=st.dictionaries(st.text(), PLACES, max_size=5),
    next_at=st.floats(0, 4e9),
    tail_at=st.floats(0, 4e9),
    written_at=st.floats(0, 4e9),
)
