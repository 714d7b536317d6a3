"""Run what is left to do for a batch once, when the last of its shares has ended, in the thread that ended last."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Completion:
    """Counts the shares of a batch that have not ended, and calls back when none is left."""

    def __init__(self, shares: int) -> None:
        self._lock = threading.Lock()
        self._left = shares
        self._callback: Callable[[], object] | None = None

    def share_ended(self) -> None:
        """Count one share less."""
        with self._lock:
            self._left -= 1
        self._call_back_if_complete()

    def abandon(self) -> None:
        """Stop waiting for the shares that have not ended."""
        with self._lock:
            self._left = 0
        self._call_back_if_complete()

    def then(self, callback: Callable[[], object]) -> None:
        """Call this when all shares have ended; at once if they have."""
        with self._lock:
            self._callback = callback
        self._call_back_if_complete()

    def _call_back_if_complete(self) -> None:
        with self._lock:
            if self._left > 0:
                return
            callback, self._callback = self._callback, None
        if callback is not None:
            callback()
