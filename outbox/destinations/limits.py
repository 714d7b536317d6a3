"""The limits of a destination (`outbox.Limits`): calls at the same time, events a second, and its circuit breaker.

A destination has them as its attribute `limits`; `outbox.throttle` applies them.
"""

from __future__ import annotations

from dataclasses import dataclass

from outbox.errors import RegistrationError

OPEN_AFTER = 5
# With rates beyond these, the times between events can't be computed as floats.
LEAST_PER_SECOND, MOST_PER_SECOND = 1e-300, 1e300


@dataclass(frozen=True, slots=True)
class Limits:
    """A destination's limits. All workers that share a Redis keep them together; without Redis, each process does.

    `concurrency`: how many calls may be under way at the same time. `per_second`: how many events may be sent a second,
    spread evenly. `open_after`: how many times in a row a process must fail to reach the destination before its circuit
    breaker opens, and nothing is sent to it for a while; with None the breaker never opens.
    """

    concurrency: int | None = None
    per_second: float | None = None
    open_after: int | None = OPEN_AFTER

    def __post_init__(self) -> None:
        for name in ("concurrency", "open_after"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise RegistrationError(f"{name} must be a whole number from 1 on, or None, not {value!r}.")
        rate = self.per_second
        if rate is not None and not _is_rate(rate):
            raise RegistrationError(f"per_second must be a number greater than 0, or None, not {rate!r}.")


def _is_rate(value: object) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and LEAST_PER_SECOND <= value <= MOST_PER_SECOND
    )
