"""Wake the drains of a process that wait for an event of another drain to be settled (`ordered_rounds.py`)."""

from __future__ import annotations

import threading


class SettledSignal:
    """A signal that events with ordering keys were settled. Threads can wait for it."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._count = 0

    @property
    def count(self) -> int:
        """Return how often it was sent."""
        return self._count

    def send(self) -> None:
        """Wake all that wait."""
        with self._condition:
            self._count += 1
            self._condition.notify_all()

    def wait(self, seen: int, seconds: float) -> None:
        """Wait until it was sent more often than `seen`, but no longer than this many seconds."""
        with self._condition:
            self._condition.wait_for(lambda: self._count != seen, seconds)
