"""Limit the total time of one request, whatever it is waiting for.

A timeout for each socket operation would not do that: a receiver that sends one byte now and then never exceeds it.
"""

from __future__ import annotations

import time


class Deadline:
    """The deadline of the current request on a connection. Every operation that may block asks it for the time left."""

    __slots__ = ("_ends_at", "operation", "response_began")

    def __init__(self) -> None:
        self.begin(0.0)

    def begin(self, ends_at: float) -> None:
        """Start a new request, which must end at this time by `time.monotonic()`."""
        self._ends_at = ends_at
        # What the request is waiting for, to be named in its error.
        self.operation = "starting"
        # Whether any byte of a response has arrived.
        self.response_began = False

    def shorten(self, seconds: float) -> None:
        """Leave at most this many seconds from now."""
        self._ends_at = min(self._ends_at, time.monotonic() + seconds)

    def left(self, operation: str) -> float:
        """Return the seconds left for an operation; raise TimeoutError if there are none.

        The result is never 0, because a socket would take 0 for "don't block".
        """
        self.operation = operation
        seconds = self._ends_at - time.monotonic()
        if seconds <= 0:
            raise TimeoutError
        return seconds
