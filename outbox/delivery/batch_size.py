"""How many events to claim at once: about a second's work."""

from __future__ import annotations

TARGET_SECONDS = 1.0


class Pace:
    """Follows the speed of the last batches; grows by doubling, shrinks at once."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.size = most

    def took(self, events: int, seconds: float) -> None:
        """A batch of this many events took this long."""
        affordable = self._most if seconds <= 0 else int(events / seconds * TARGET_SECONDS)
        self.size = max(1, min(affordable, self.size * 2, self._most))
