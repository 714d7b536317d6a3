"""A queue of the threads of this process that wait for a free slot of one destination.

First in, first out: otherwise a thread could take back the slot that it has just released, before the threads that
wait have looked.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

# How long a thread waits at most before it looks again: a slot may also be released by another process.
LOOK_SECONDS = 0.02


class SlotQueue:
    """Lets one thread after another look for a free slot."""

    def __init__(self) -> None:
        self._holders: deque[str] = deque()
        self._changed = threading.Condition()
        # Counts the changes, so that none is missed between a look and the wait that follows.
        self.changes = 0

    @contextmanager
    def waiting(self, holder: str) -> Iterator[None]:
        """Stand in the queue for the length of the block."""
        with self._changed:
            self._holders.append(holder)
        try:
            yield
        finally:
            with self._changed:
                self._holders.remove(holder)
            self.notify()

    def is_first(self, holder: str) -> bool:
        """Return whether this holder is the first in the queue: only the first looks for a slot."""
        return self._holders[0] == holder

    def wait(self, known_changes: int) -> None:
        """Wait for a change beyond those that the caller knows of, for a moment at most."""
        with self._changed:
            self._changed.wait_for(lambda: self.changes != known_changes, LOOK_SECONDS)

    def notify(self) -> None:
        """Wake the threads that wait: a slot was released, or a thread has left the queue."""
        with self._changed:
            self.changes += 1
            self._changed.notify_all()
