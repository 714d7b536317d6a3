"""The rate limit of a destination: how many events a second it gets, spread evenly.

The state holds when the next event may be sent (`next_at`), and the end of the schedule of waiting events (`tail_at`).
An event that has to wait gets a time at the end of the schedule, which moves on by one step. These functions take a
state and return a new one, without side effects.
"""

from __future__ import annotations

import math
from dataclasses import replace

from outbox.throttle.shared_state import ThrottleState

# As many events as the rate allows in this time may be sent together. Otherwise, each event would need a claim of its
# own. Also, an event that is up to this late does not delay the events after it.
BURST_SECONDS = 0.1
# The rounding error of sums of times since 1970, which are floats.
EXACT_SECONDS = 1e-6
# No event is put off for longer than this, because the destination may get faster.
HORIZON_SECONDS = 600.0


def take(state: ThrottleState, now: float, events: int, rate: float | None) -> tuple[int, ThrottleState]:
    """Return how many of these events may be sent now at this rate, and the state after they were sent."""
    if rate is None:
        return events, state
    step = 1 / rate
    burst = max(1.0, rate * BURST_SECONDS)
    tolerated = max((burst - 1) * step, min(0.99 * step, BURST_SECONDS))
    first_at = max(state.next_at, now - tolerated)
    allowed = math.floor((now - first_at + EXACT_SECONDS) / step) + 1 if first_at <= now + EXACT_SECONDS else 0
    taken = min(events, allowed)
    return taken, replace(state, next_at=first_at + taken * step if taken else state.next_at)


def enqueue(
    state: ThrottleState,
    now: float,
    waiting: int,
    admitted: int,
    rate: float,
    *,
    horizon_seconds: float = HORIZON_SECONDS,
) -> tuple[ThrottleState, float, float]:
    """Add `waiting` events to the end of the schedule, while `admitted` events are sent now.

    Return the state, the seconds until the first of the waiting events, and the seconds between two of them. None of
    them waits for longer than `horizon_seconds`.
    """
    step = 1 / rate
    begins_at = max(state.tail_at, state.next_at, now + step * admitted)
    wait = min(begins_at - now, horizon_seconds)
    tail_at = min(begins_at + step * waiting, now + horizon_seconds)
    # The schedule may reach further: other workers may put off events for longer.
    return replace(state, tail_at=max(state.tail_at, tail_at)), wait, step


def restarted(state: ThrottleState, now: float) -> ThrottleState:
    """Return the state without a schedule: it was made at another rate."""
    return replace(state, next_at=min(state.next_at, now), tail_at=min(state.tail_at, now))


def lowest(*rates: float | None) -> float | None:
    """Return the lowest of these rates. None stands for no limit."""
    return min((rate for rate in rates if rate is not None), default=None)
