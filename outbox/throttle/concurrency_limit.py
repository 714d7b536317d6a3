"""The concurrency limit of a destination: how many calls may be under way at the same time.

These functions take a state and return a new one, without side effects. If a destination has no concurrency limit, the
same functions limit how many batches one process sends to it at the same time (`ProcessLimiter`).
"""

from __future__ import annotations

from outbox.throttle.shared_state import ActiveCalls, ThrottleState

# If the limit is reached, the next try is after this many seconds, at least and at most.
LEAST_WAIT, MOST_WAIT = 0.2, 30.0


def drop_expired(state: ThrottleState, now: float) -> ThrottleState:
    """Return the state without the calls that have expired."""
    return _with_calls(state, {holder: each for holder, each in state.active_calls.items() if each.until > now})


def calls_under_way(state: ThrottleState) -> int:
    """Return how many calls are under way."""
    return sum(each.calls for each in state.active_calls.values())


def wait_seconds(state: ThrottleState, now: float) -> float:
    """Return how long to wait before the next try: as long as the newest calls have been under way, within bounds."""
    age = now - max(each.since for each in state.active_calls.values())
    return min(max(age, LEAST_WAIT), MOST_WAIT)


def hold(state: ThrottleState, calls: dict[str, ActiveCalls]) -> ThrottleState:
    """Return the state in which these calls, by holder, are under way too."""
    return _with_calls(state, state.active_calls | calls)


def release(state: ThrottleState, holder: str) -> ThrottleState:
    """Return the state without the calls of this holder, which have ended."""
    return _with_calls(state, {name: each for name, each in state.active_calls.items() if name != holder})


def _with_calls(state: ThrottleState, active_calls: dict[str, ActiveCalls]) -> ThrottleState:
    """Return the state with other calls. Each batch needs it, and `dataclasses.replace` takes three times as long."""
    if active_calls == state.active_calls:
        return state
    return ThrottleState(
        state.trips, state.open_until, state.error, state.recovered_at, active_calls, state.next_at, state.tail_at,
        state.written_at, state.opened_at,
    )  # fmt: skip
