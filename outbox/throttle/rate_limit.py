"""The rate limit of a destination: how many events a second it gets, spread evenly.

The state holds when the next event may go (`next_at`), and the end of the queue (`tail_at`): each event that has to
wait is given a time of its own behind it. These are pure functions from a state to a state.
"""

from __future__ import annotations

import math
from dataclasses import replace

from outbox.throttle.shared_state import ThrottleState

# As many events as the rate allows in this time may go at once: spacing every single event would cost a claim for each.
# And an event that comes up to this much after its time does not lose it.
BURST_SECONDS = 0.1
# Sums of times since 1970 are no more exact than this.
EXACT_SECONDS = 1e-6
# No event is put off for longer than this: the destination may get faster meanwhile.
HORIZON_SECONDS = 600.0


def take(state: ThrottleState, now: float, events: int, rate: float | None) -> tuple[int, ThrottleState]:
    """Return how many of these events may go now at this rate, and the state after they have gone."""
    if rate is None:
        return events, state
    step = 1 / rate
    burst = max(1.0, rate * BURST_SECONDS)
    late = max((burst - 1) * step, min(0.99 * step, BURST_SECONDS))
    base = max(state.next_at, now - late)
    allowed = math.floor((now - base + EXACT_SECONDS) / step) + 1 if base <= now + EXACT_SECONDS else 0
    taken = min(events, allowed)
    return taken, replace(state, next_at=base + taken * step if taken else state.next_at)


def enqueue(
    state: ThrottleState, now: float, waiting: int, admitted: int, rate: float
) -> tuple[ThrottleState, float, float]:
    """Give so many waiting events times behind those that others were given before, while `admitted` ones go now.

    Returns the state, the seconds until the first of these times, and the seconds between them.
    """
    step = 1 / rate
    begins_at = max(state.tail_at, state.next_at, now + step * admitted)
    wait = min(begins_at - now, HORIZON_SECONDS)
    tail_at = min(begins_at + step * waiting, now + HORIZON_SECONDS)
    return replace(state, tail_at=tail_at), wait, step


def lowest(*rates: float | None) -> float | None:
    """Return the lowest of these rates, where None is no limit."""
    return min((rate for rate in rates if rate is not None), default=None)
