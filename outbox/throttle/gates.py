"""Gates: whether a destination may be given events now, and how many.

A destination that can't be reached is left alone and tested with one event at a time; one that is slow, or limited,
gets as much as it can take, and everybody else goes on meanwhile.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from outbox.destinations.protocol import Destination
from outbox.settings import Settings
from outbox.throttle.gate import Gate, Permit
from outbox.throttle.state import State
from outbox.throttle.store import FallbackStore, LocalStore, RedisStore, Store

__all__ = ["Gate", "Gates", "Permit"]

logger = logging.getLogger("outbox")

# Seconds. A limit is not worth waiting long for.
ANSWER_TIMEOUT = 0.5


class Gates:
    """The gates of one outbox in this process."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._store: Store | None = None
        self._gates: dict[int, tuple[Destination, Gate]] = {}
        self._lock = threading.Lock()

    def of(self, destination: Destination) -> Gate:
        """The gate of a destination; made when it is first asked for."""
        with self._lock:
            found = self._gates.get(id(destination))
            if found is None:
                hold_seconds = self._settings.max_run_seconds + self._settings.lease_seconds
                gate = Gate(
                    destination,
                    self._shared(),
                    self._clock,
                    groups=self._settings.drains,
                    hold_seconds=hold_seconds,
                    run_seconds=self._settings.max_run_seconds,
                    on_stuck=self._end_process if self._settings.exit_on_stuck else lambda: None,
                )
                found = self._gates[id(destination)] = (destination, gate)
            return found[1]

    def state(self, destination: Destination) -> State:
        """What the workers agree on about a destination."""
        return self._shared().update(destination.name, lambda state, _: (state, state))

    def report(self) -> dict[str, dict[str, Any]]:
        """Those that are being left alone or have just recovered, by name: for how long, and why."""
        with self._lock:
            used = [destination.name for destination, _ in self._gates.values()]
        states = {name: self._shared().update(name, lambda state, now: (state, (state, now))) for name in used}
        return {
            name: {
                "open": state.open,
                "trips": state.trips,
                "seconds": round(max(0.0, state.open_until - now), 3),
                "error": state.error,
            }
            for name, (state, now) in states.items()
            if not state.is_calm(now)
        }

    def stuck(self) -> dict[str, dict[str, Any]]:
        """Return the destinations, by name, with calls that have not returned in time: how many, and for how long."""
        with self._lock:
            gates = [gate for _, gate in self._gates.values()]
        found = {gate.name: gate.stuck() for gate in gates}
        return {
            name: {"calls": stuck.calls, "seconds": round(stuck.seconds, 3), "all_places": stuck.all_places}
            for name, stuck in found.items()
            if stuck is not None
        }

    def _end_process(self) -> None:
        """Stop as on a signal: what is in flight finishes, and what has not begun is given back."""
        logger.critical("OUTBOX_EXIT_ON_STUCK is set: this process ends, so that another may take its place")
        os.kill(os.getpid(), signal.SIGTERM)

    def _shared(self) -> Store:
        if self._store is None:
            self._store = _make_store(self._settings, self._clock)
        return self._store


def _make_store(settings: Settings, clock: Callable[[], float]) -> Store:
    if settings.redis_url is None:
        return LocalStore(clock)
    from outbox.storage.redis_client import make_client  # an extra

    client = make_client(settings.redis_url, answer_timeout=ANSWER_TIMEOUT)
    return FallbackStore(RedisStore(client, f"{settings.namespace}:{settings.queue}.gate:"))
