"""Where throttles keep their states: the interface of a store, and the store for a process without Redis.

A decision is a function from a state to a state. A store applies it so that no other change is lost.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from outbox.throttle.shared_state import ThrottleState

T = TypeVar("T")
# Gets the state and the time by the store's clock; returns the new state and a result for the caller.
Decide = Callable[[ThrottleState, float], tuple[ThrottleState, T]]


class StateStore(Protocol):
    """Keeps a state for each destination, by its name."""

    def update(self, name: str, decide: Decide[T]) -> T:
        """Replace the state by the one that `decide` returns, and return its result."""
        ...

    def release(self, name: str, decide: Decide[None]) -> None:
        """Do the same for a change that releases something: it must not be lost, but may be late."""
        ...


class LocalStore:
    """Keeps the states of one process, in memory."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._states: dict[str, ThrottleState] = {}

    def update(self, name: str, decide: Decide[T]) -> T:
        with self._lock:
            self._states[name], result = decide(self._states.get(name, ThrottleState()), self._clock())
            return result

    release = update
