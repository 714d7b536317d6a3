"""Choose how many events a worker claims at once: about a second's work."""

from __future__ import annotations

TARGET_SECONDS = 1.0


class AdaptiveBatchSize:
    """A batch size that follows the speed of the last batches: it at most doubles each time, and shrinks at once."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.current = most

    def batch_took(self, events: int, seconds: float) -> None:
        """Adapt the size to the speed of a batch of `events` events that took `seconds`."""
        affordable = self._most if seconds <= 0 else int(events / seconds * TARGET_SECONDS)
        self.current = max(1, min(affordable, self.current * 2, self._most))
