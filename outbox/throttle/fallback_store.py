"""Keep the states of throttles in Redis, and in this process while Redis can't be used.

Deliveries go on without Redis. Each process then applies the circuit breakers and limits to its own calls only.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable

from outbox.errors import as_sentence
from outbox.throttle.shared_state import Decide, LocalStore, StateStore, T

logger = logging.getLogger(__name__)

# After Redis has failed, it is not used for this long, so that deliveries don't wait for it again and again.
PAUSE_SECONDS = 5.0
# Releases that could not be written to Redis are kept for later, up to this many. If there are more, the oldest are
# dropped, and their calls count until they expire.
MOST_UNRELEASED = 1_000


class FallbackStore:
    """Uses the shared store, or a store in this process while the shared store fails."""

    def __init__(self, shared: StateStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._shared = shared
        self._clock = clock
        self._local = LocalStore()
        self._failed_at: float | None = None
        self._unreleased: deque[tuple[str, Decide[None]]] = deque(maxlen=MOST_UNRELEASED)

    def update(self, name: str, decide: Decide[T]) -> T:
        if self.is_pausing:
            return self._local.update(name, decide)
        try:
            self._release_rest()
            result = self._shared.update(name, decide)
        except Exception as error:
            self._record_failure(error)
            return self._local.update(name, decide)
        self._record_success()
        return result

    def release(self, name: str, decide: Decide[None]) -> None:
        """Release in both stores, because Redis may have failed, or become usable again, since the calls began."""
        self._local.update(name, decide)
        self._unreleased.append((name, decide))
        if self.is_pausing:
            return
        try:
            self._release_rest()
        except Exception as error:
            self._record_failure(error)
        else:
            self._record_success()

    def _release_rest(self) -> None:
        """Make the releases in the shared store that were not made there yet."""
        while self._unreleased:
            try:
                name, decide = self._unreleased.popleft()
            except IndexError:
                return  # another thread has taken the last release
            try:
                self._shared.update(name, decide)
            except Exception:
                self._unreleased.appendleft((name, decide))
                raise

    @property
    def is_pausing(self) -> bool:
        return self._failed_at is not None and self._clock() - self._failed_at < PAUSE_SECONDS

    def _record_failure(self, error: Exception) -> None:
        if self._failed_at is None:
            logger.warning(
                "Redis can't be used: %s Until it can, this process applies circuit breakers and limits to its own "
                "calls only.",
                as_sentence(error),
            )
        self._failed_at = self._clock()

    def _record_success(self) -> None:
        if self._failed_at is not None:
            logger.info("Redis can be used again: circuit breakers and limits are shared by all workers")
            self._failed_at = None
