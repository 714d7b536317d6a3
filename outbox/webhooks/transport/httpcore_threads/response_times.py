"""Whether a receiver answers so soon that waiting for it costs less than handing the request to a thread that does."""

from __future__ import annotations

QUICK_SECONDS = 0.005
# So many quick answers in a row, at first and at most.
FEWEST, MOST = 20, 1280
# Who waits this long itself has kept the rest of its batch waiting.
COSTLY_SECONDS = 0.1


class ResponseTimes:
    """Shared by all exchanges with a receiver. That its counts are off by some now and then does no harm."""

    __slots__ = ("_needed", "_row")

    def __init__(self) -> None:
        self._row = 0
        self._needed = FEWEST

    @property
    def is_quick(self) -> bool:
        return self._row >= self._needed

    def note(self, seconds: float) -> None:
        """One request has taken so long."""
        if seconds <= QUICK_SECONDS:
            self._row += 1
            return
        if seconds >= COSTLY_SECONDS and self.is_quick:
            self._needed = min(2 * self._needed, MOST)
        self._row = 0
