"""Landing: what is done when the last group of a batch has ended, whoever that is."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Landing:
    """Counts a batch's groups; the last one to end, or whoever gives up on them, does what is left to do."""

    def __init__(self, groups: int) -> None:
        self._lock = threading.Lock()
        self._left = groups
        self._then: Callable[[], object] | None = None

    def ended(self) -> None:
        """One group has ended."""
        with self._lock:
            self._left -= 1
        self._land()

    def abandon(self) -> None:
        """Nobody waits for the others."""
        with self._lock:
            self._left = 0
        self._land()

    def then(self, do: Callable[[], object]) -> None:
        """Do this when all have ended; at once if they have."""
        with self._lock:
            self._then = do
        self._land()

    def _land(self) -> None:
        with self._lock:
            if self._left > 0:
                return
            then, self._then = self._then, None
        if then is not None:
            then()
