"""The state of one destination's throttle that all workers must agree on, and its JSON in Redis.

The state holds the circuit breaker (`circuit_breaker`), the calls under way (`concurrency_limit`) and the schedule of
the rate limit (`rate_limit`). These modules hold pure functions from a state to a state; a store (`state_store`) keeps
the state. All times are seconds by the store's clock: Redis's, or the process's own without Redis.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any, Self

# Two readings of one clock differ by less than this, unless the clock was set back between them.
SKEW_SECONDS = 1.0
# The JSON name of `active_calls`. Workers of earlier versions share the state too, so it stays.
ACTIVE_CALLS = "places"


@dataclass(frozen=True, slots=True)
class ActiveCalls:
    """The calls of one batch that are under way: how many, since when, and until when they count at the latest.

    After `until` they count no longer, because a worker that died never releases them.
    """

    calls: int
    since: float
    until: float


@dataclass(frozen=True, slots=True)
class ThrottleState:
    """What the workers share about one destination."""

    trips: int = 0  # how often in a row the circuit breaker opened; 0: it is closed
    open_until: float = 0.0
    error: str = ""  # why the circuit breaker opened
    recovered_at: float | None = None
    active_calls: dict[str, ActiveCalls] = field(default_factory=dict)  # by holder: an id for each batch
    next_at: float = 0.0  # when the rate limit allows the next event
    tail_at: float = 0.0  # the earliest time that no waiting event has been given yet
    written_at: float = 0.0  # by the store's clock; 0: unknown

    @property
    def is_open(self) -> bool:
        """Return whether the circuit breaker is open."""
        return self.trips > 0

    def corrected_for_clock(self, now: float) -> Self:
        """Return the state; if it was written in the future, move its times, because the clock was set back since.

        Otherwise the circuit breaker would stay open, and calls and scheduled times would count, for as long as the
        clock was ahead.
        """
        ahead = self.written_at - now
        if ahead <= SKEW_SECONDS:
            return self
        active_calls = {
            holder: ActiveCalls(each.calls, each.since - ahead, each.until - ahead)
            for holder, each in self.active_calls.items()
        }
        return replace(
            self,
            open_until=self.open_until - ahead,
            recovered_at=None if self.recovered_at is None else self.recovered_at - ahead,
            active_calls=active_calls,
            next_at=self.next_at - ahead,
            tail_at=self.tail_at - ahead,
            written_at=now,
        )

    def to_json(self) -> str:
        """Return the state as JSON text."""
        fields = _fields(self)
        fields[ACTIVE_CALLS] = {holder: _fields(each) for holder, each in fields.pop("active_calls").items()}
        return json.dumps(fields, separators=(",", ":"), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the state of a JSON text, without the fields that only another version of the library knows."""
        fields = json.loads(text)
        found = fields.pop(ACTIVE_CALLS, {})
        active_calls = {holder: ActiveCalls(**_known(ActiveCalls, each)) for holder, each in found.items()}
        return cls(**(_known(cls, fields) | {"active_calls": active_calls}))


def _fields(value: ThrottleState | ActiveCalls) -> dict[str, Any]:
    """Return the fields of a dataclass by name, without the copies that `dataclasses.asdict` makes."""
    return {name: getattr(value, name) for name in value.__slots__}


def _known(kind: type[ActiveCalls | ThrottleState], fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name in kind.__slots__}
