"""Decide whether a receiver responds so fast that requests are best sent one after the other, without threads.

Handing a request to a thread, and its result back, takes as long as a fast receiver takes to respond.
"""

from __future__ import annotations

FAST_SECONDS = 0.005
# How many fast responses in a row are needed: at first, and at most.
FEWEST_IN_A_ROW, MOST_IN_A_ROW = 20, 1280
# A response that took this long, while requests were sent one after the other, has delayed the rest of its batch. After
# such a response, twice as many fast responses in a row are needed.
COSTLY_SECONDS = 0.1


class ResponseTimes:
    """How long one receiver's responses take. All exchanges with it share this object.

    Threads change it without a lock: a count that is off by one now and then does no harm.
    """

    __slots__ = ("_costly_seconds", "_fast_seconds", "_in_a_row", "_needed")

    def __init__(self, *, fast_seconds: float = FAST_SECONDS, costly_seconds: float = COSTLY_SECONDS) -> None:
        self._fast_seconds = fast_seconds
        self._costly_seconds = costly_seconds
        self._in_a_row = 0
        self._needed = FEWEST_IN_A_ROW

    @property
    def are_fast(self) -> bool:
        """Return whether enough responses in a row were fast."""
        return self._in_a_row >= self._needed

    def record(self, seconds: float) -> None:
        """Count one response that took so long."""
        if seconds <= self._fast_seconds:
            self._in_a_row += 1
            return
        if seconds >= self._costly_seconds and self.are_fast:
            self._needed = min(2 * self._needed, MOST_IN_A_ROW)
        self._in_a_row = 0
