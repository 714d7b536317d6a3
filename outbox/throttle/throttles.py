"""The throttles of all destinations of one outbox in this process.

A destination that can't be reached gets only a probe from time to time: one event that tests it. A destination that is
slow, or has a limit, gets only as many events as it can take. Other destinations are not affected. Delivery gets a
destination's throttle here. The reports of the process say which circuit breakers are open and which calls are stuck.
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
from outbox.throttle import circuit_breaker
from outbox.throttle.circuit_breaker import is_healthy
from outbox.throttle.destination_throttle import TIMES, DestinationThrottle, ThrottleTimes
from outbox.throttle.fallback_store import FallbackStore
from outbox.throttle.redis_store import RedisStore
from outbox.throttle.shared_state import LocalStore, StateStore

logger = logging.getLogger(__name__)

# How many seconds Redis may take to reply. After that, this process decides without Redis, so that deliveries go on.
RESPONSE_TIMEOUT = 0.5


class Throttles:
    """Makes a throttle for each destination, and reports on them."""

    def __init__(
        self, settings: Settings, clock: Callable[[], float] = time.monotonic, *, times: ThrottleTimes = TIMES
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._times = times
        self._store: StateStore | None = None
        self._throttles: dict[int, tuple[Destination, DestinationThrottle]] = {}
        self._lock = threading.Lock()

    def of(self, destination: Destination) -> DestinationThrottle:
        """Return the throttle of a destination; it is made at the first call."""
        with self._lock:
            found = self._throttles.get(id(destination))
            if found is None:
                throttle = DestinationThrottle(
                    destination,
                    self._shared_store(),
                    self._clock,
                    max_batches=self._settings.drains,
                    hold_seconds=self._settings.max_run_seconds + self._settings.lease_seconds,
                    run_seconds=self._settings.max_run_seconds,
                    on_stuck=self._end_process if self._settings.exit_on_stuck else lambda: None,
                    times=self._times,
                )
                found = self._throttles[id(destination)] = (destination, throttle)
            return found[1]

    def close_breaker(self, name: str) -> bool:
        """Close the circuit breaker that the workers share, because an operator says so; return whether it was open.

        Without Redis, close the breaker of this process.
        """
        store = self._shared_store()
        return store.update(name, lambda state, now: (circuit_breaker.recover(state, now), state.is_open))

    def names(self) -> list[str]:
        """Return the names of the destinations to which this process has sent events, or has tried to."""
        with self._lock:
            return sorted({destination.name for destination, _ in self._throttles.values()})

    @property
    def is_shared(self) -> bool:
        """Return whether the circuit breakers are those of all workers, in Redis, and not this process's own."""
        store = self._shared_store()
        return isinstance(store, FallbackStore) and not store.is_pausing

    def breakers(self) -> dict[str, dict[str, Any]]:
        """Return the circuit breakers that are open or have just closed, by destination: for how long, and why."""
        update = self._shared_store().update
        states = {name: update(name, lambda state, now: (state, (state, now))) for name in self.names()}
        return {
            name: {
                "open": state.is_open,
                "trips": state.trips,
                "seconds": round(max(0.0, state.open_until - now), 3),
                "error": state.error,
                # For how long it has been open.
                "open_seconds": round(max(0.0, now - state.opened_at), 3) if state.opened_at else None,
            }
            for name, (state, now) in states.items()
            if not is_healthy(state, now)
        }

    def stuck(self) -> dict[str, dict[str, Any]]:
        """Return the calls that have not returned in time, by destination: how many, and how many seconds late."""
        with self._lock:
            throttles = [throttle for _, throttle in self._throttles.values()]
        by_name = {throttle.name: throttle.stuck() for throttle in throttles}
        return {
            name: {"calls": stuck.calls, "seconds": round(stuck.seconds, 3), "all_places": stuck.all_slots}
            for name, stuck in by_name.items()
            if stuck is not None
        }

    def _end_process(self) -> None:
        """Send this process SIGTERM. It finishes the deliveries that have begun, and gives the other events back."""
        logger.critical("OUTBOX_EXIT_ON_STUCK is set: this process ends, so that another can replace it")
        os.kill(os.getpid(), signal.SIGTERM)

    def _shared_store(self) -> StateStore:
        if self._store is None:
            self._store = _make_store(self._settings, self._clock)
        return self._store


def _make_store(settings: Settings, clock: Callable[[], float]) -> StateStore:
    if settings.redis_url is None:
        return LocalStore(clock)
    from outbox.storage.redis_client import make_client  # redis is an optional dependency

    client = make_client(settings.redis_url, response_timeout=RESPONSE_TIMEOUT)
    # These keys must stay, because workers of earlier versions use them too.
    return FallbackStore(RedisStore(client, f"{settings.namespace}:{settings.queue}.gate:"))
