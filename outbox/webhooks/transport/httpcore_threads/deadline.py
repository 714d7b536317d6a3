"""How long a request may still take, whatever it is waiting for."""

from __future__ import annotations

import time


class Deadline:
    """One request's time, from resolving the name to the last byte: asked before every operation that may block.

    A limit for each operation would be none for their sum: a receiver that sends a byte now and then never exceeds it.
    """

    __slots__ = ("_ends_at", "answered", "doing")

    def __init__(self) -> None:
        self.begin(0.0)

    def begin(self, ends_at: float) -> None:
        """A new request, that ends at this time by `time.monotonic()`."""
        self._ends_at = ends_at
        self.doing = "starting"
        self.answered = False  # whether any byte has come back

    def shorten(self, seconds: float) -> None:
        """What is left is worth no more than this."""
        self._ends_at = min(self._ends_at, time.monotonic() + seconds)

    def left(self, doing: str) -> float:
        """The seconds left for what is done now; always more than 0, which a socket would take for `don't wait`."""
        self.doing = doing
        seconds = self._ends_at - time.monotonic()
        if seconds <= 0:
            raise TimeoutError
        return seconds
