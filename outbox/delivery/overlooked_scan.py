"""Say when to look for events that wait although nothing holds them back, and where to go on (`followers.py`).

Such events are rare, and the table of waiting events may be large: a blocked key has one row for each event behind it.
So a worker process looks every few seconds, reads a limited number of keys, and continues there the next time.
"""

from __future__ import annotations

import time

from outbox.storage.waiting_events import Pair

# How long after a complete look the next one begins, at most; and after one that has reached its limit.
PAUSE_SECONDS = 5.0
GO_ON_SECONDS = 1.0
# How many pairs of key and destination one look reads.
PAIRS_PER_LOOK = 1_000

# Sorts before every pair.
BEGINNING: Pair = ("", "")


class OverlookedScan:
    """Where this process has to go on, and when. Threads may overwrite each other's values: they are only hints."""

    def __init__(self, sweep_seconds: float) -> None:
        self._pause_seconds = min(PAUSE_SECONDS, sweep_seconds)
        self._due_at = 0.0
        self.position = BEGINNING

    def is_due(self) -> bool:
        """Return whether to look now; if so, it is not due again for a while."""
        now = time.monotonic()
        if now < self._due_at:
            return False
        self._due_at = now + self._pause_seconds
        return True

    def read_up_to(self, position: Pair) -> None:
        """Remember where the next look begins: soon, unless the end was reached (BEGINNING)."""
        self.position = position
        if position != BEGINNING:
            self._due_at = time.monotonic() + min(GO_ON_SECONDS, self._pause_seconds)
