"""The concurrency limit of a destination: how many calls may be under way at the same time.

These are pure functions from a state to a state. The same functions also limit how many batches of a destination one
process works on, if the destination has no limit of its own (`destination_throttle`).
"""

from __future__ import annotations

from outbox.throttle.shared_state import ActiveCalls, ThrottleState

# When the limit is reached: how long until another try, at least and at most.
LEAST_WAIT, MOST_WAIT = 0.2, 30.0


def drop_expired(state: ThrottleState, now: float) -> ThrottleState:
    """Return the state without the calls whose time is over."""
    return _with_calls(state, {holder: each for holder, each in state.active_calls.items() if each.until > now})


def calls_under_way(state: ThrottleState) -> int:
    """Return how many calls are under way."""
    return sum(each.calls for each in state.active_calls.values())


def wait_seconds(state: ThrottleState, now: float) -> float:
    """Return how long to wait for the end of a call: as long as the latest has been under way, within bounds."""
    age = now - max(each.since for each in state.active_calls.values())
    return min(max(age, LEAST_WAIT), MOST_WAIT)


def hold(state: ThrottleState, calls: dict[str, ActiveCalls]) -> ThrottleState:
    """Return the state with these calls, by holder, under way."""
    return _with_calls(state, state.active_calls | calls)


def release(state: ThrottleState, holder: str) -> ThrottleState:
    """Return the state without the calls of this holder, which have ended."""
    return _with_calls(state, {name: each for name, each in state.active_calls.items() if name != holder})


def _with_calls(state: ThrottleState, active_calls: dict[str, ActiveCalls]) -> ThrottleState:
    """Do what `dataclasses.replace` does, in a third of the time: this is done for every batch."""
    if active_calls == state.active_calls:
        return state
    return ThrottleState(
        state.trips, state.open_until, state.error, state.recovered_at, active_calls, state.next_at, state.tail_at,
        state.written_at,
    )  # fmt: skip
