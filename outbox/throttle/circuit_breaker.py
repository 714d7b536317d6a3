"""The circuit breaker of a destination: stop sending to it when it can't be reached, and test it with single events.

    closed ── not reached, n times in a row ──▶ open: no event is sent, for longer each time
      ▲                                           │ the time is over: one event is sent, the probe
      │                                           ▼
      └── reached: closed, with a ramp-up ◀── probe ── not reached ──▶ open again

These functions take a state and return a new one, without side effects. All workers that share a Redis share the state.
Each process counts its own failures to reach the destination (`destination_throttle`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from outbox.throttle.shared_state import ThrottleState

# The ramp-up after an outage: five events a second at first, twice as many every five seconds; no limit after a minute.
RAMP_PER_SECOND = 5.0
RAMP_DOUBLES_EVERY = 5.0
RAMP_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class OpenTimes:
    """How long the breaker is open: at first, and twice as long after each failed probe, up to the cap.

    The cap is low because a probe costs little.
    """

    first_seconds: float = 5.0
    cap_seconds: float = 60.0

    def after(self, trips: int) -> float:
        """Return how many seconds the breaker is open after it opened this many times in a row."""
        return min(self.first_seconds * 2.0 ** min(trips - 1, 60), self.cap_seconds)


OPEN_TIMES = OpenTimes()


def trip(
    state: ThrottleState, now: float, error: str, *, probe: bool, open_times: OpenTimes = OPEN_TIMES
) -> ThrottleState:
    """Open the breaker because the destination could not be reached.

    If the breaker is open already, return the state unchanged, because another worker has opened it. But after a failed
    `probe`, the breaker opens again, for longer.
    """
    if state.is_open and not probe:
        return state
    trips = state.trips + 1
    return replace(
        state,
        trips=trips,
        open_until=now + open_times.after(trips),
        opened_at=state.opened_at if state.is_open else now,
        error=error,
        recovered_at=None,
    )


def begin_probe(state: ThrottleState, now: float, hold_seconds: float) -> ThrottleState:
    """Keep the breaker open for `hold_seconds` while a probe is under way.

    If the outcome of the probe is never reported, another probe may be sent after that time.
    """
    return replace(state, open_until=now + hold_seconds)


def cancel_probe(state: ThrottleState, now: float) -> ThrottleState:
    """Allow another probe at once, because this one was not sent."""
    return replace(state, open_until=now) if state.is_open else state


def recover(state: ThrottleState, now: float) -> ThrottleState:
    """Close the breaker and begin the ramp-up: the destination was reached. A closed breaker does not change."""
    if not state.is_open:
        return state
    return replace(state, trips=0, open_until=0.0, opened_at=0.0, error="", recovered_at=now, tail_at=now)


def is_healthy(state: ThrottleState, now: float) -> bool:
    """Return whether the breaker limits nothing: it is closed, and no ramp-up is going on."""
    return not state.is_open and (state.recovered_at is None or now - state.recovered_at >= RAMP_SECONDS)


def ramp_up_rate(state: ThrottleState, now: float) -> float | None:
    """Return how many events a second the ramp-up after an outage allows; None if there is no ramp-up."""
    if state.recovered_at is None or is_healthy(state, now):
        return None
    elapsed = max(0.0, now - state.recovered_at)
    return RAMP_PER_SECOND * float(2.0 ** (elapsed / RAMP_DOUBLES_EVERY))
