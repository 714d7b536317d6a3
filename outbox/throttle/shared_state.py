"""The state of one destination's throttle that all workers share, its JSON in Redis, and the stores that keep it.

The state holds the circuit breaker (`circuit_breaker`), the calls under way (`concurrency_limit`) and the schedule of
the rate limit (`rate_limit`). The functions of these modules take a state and return a new one. A store keeps the
state, and applies such a function so that no change by another worker is lost. All times are seconds by the store's
clock: Redis's, or the process's own without Redis.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self, TypeVar

# A state may seem to be written up to this far in the future, because a process estimates the store's time between two
# readings of the clock. If it is further ahead, the clock was set back.
SKEW_SECONDS = 1.0
# The JSON name of `active_calls`. It must stay, because workers of earlier versions share the state too.
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
    tail_at: float = 0.0  # the end of the rate limit's schedule of waiting events
    written_at: float = 0.0  # by the store's clock; 0: unknown
    opened_at: float = 0.0  # since when it is open; 0: closed, or opened by an earlier version

    @property
    def is_open(self) -> bool:
        """Return whether the circuit breaker is open."""
        return self.trips > 0

    def corrected_for_clock(self, now: float) -> Self:
        """Return the state. If it was written in the future, the clock was set back since: move the times back too.

        Otherwise the circuit breaker would stay open, and calls and scheduled times would count, for as long as the
        clock was set back.
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
            opened_at=self.opened_at - ahead if self.opened_at else 0.0,
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
        """Return the state in a JSON text. Fields that only another version of the library knows are ignored."""
        fields = json.loads(text)
        by_holder = fields.pop(ACTIVE_CALLS, {})
        active_calls = {holder: ActiveCalls(**_known(ActiveCalls, each)) for holder, each in by_holder.items()}
        return cls(**(_known(cls, fields) | {"active_calls": active_calls}))


def _fields(value: ThrottleState | ActiveCalls) -> dict[str, Any]:
    """Return the fields of a dataclass by name, without the copies that `dataclasses.asdict` makes."""
    return {name: getattr(value, name) for name in value.__slots__}


def _known(kind: type[ActiveCalls | ThrottleState], fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name in kind.__slots__}


T = TypeVar("T")
# A function that gets the state and the time by the store's clock, and returns the new state and a result.
Decide = Callable[[ThrottleState, float], tuple[ThrottleState, T]]


class StateStore(Protocol):
    """Keeps a state for each destination, by its name."""

    def update(self, name: str, decide: Decide[T]) -> T:
        """Replace the state by the new state that `decide` returns, and return its result."""
        ...

    def release(self, name: str, decide: Decide[None]) -> None:
        """Change the state like `update`, to release calls. The change must not be lost, but may be made later."""
        ...


class LocalStore:
    """Keeps the states in the memory of this process: without Redis, or while Redis can't be used."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._states: dict[str, ThrottleState] = {}

    def update(self, name: str, decide: Decide[T]) -> T:
        with self._lock:
            self._states[name], result = decide(self._states.get(name, ThrottleState()), self._clock())
            return result

    release = update
