"""The front: where this process's claims begin to look.

What is due is read by its index, the oldest first. There lies what is being delivered right now and, while somebody
holds an old snapshot open, what was settled since: PostgreSQL can't remove that yet. Each claim would read past all of
it. So a process remembers how far its last full batch reached, and begins there.

What has come up behind that - a retry, a lease that ran out, a transaction that committed late - is found by a look
from the very beginning: when a claim comes back short, and once a second. Should such a look take long, so that it is
about a tenth of the work.
"""

from __future__ import annotations

import time
from collections.abc import Callable

LOOK_SECONDS = 1.0
LONGEST_SECONDS = 10.0
SHARE = 0.1


class Front:
    """A hint, shared by a process's threads: whichever is written last will do."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._reached: object = None
        # When to look from the very beginning again: for what is due, and for suspects among it.
        self._look_at = {False: 0.0, True: 0.0}

    def since(self, *, suspects: bool) -> object:
        """Where to begin; None for the very beginning."""
        now = self._clock()
        if self._reached is not None and now < self._look_at[suspects]:
            return self._reached
        self._looks(suspects, now + LOOK_SECONDS)
        return None

    def looked(self, seconds: float, *, suspects: bool) -> None:
        """A look from the very beginning took so long."""
        pause = min(max(LOOK_SECONDS, seconds / SHARE), LONGEST_SECONDS)
        self._looks(suspects, self._clock() + pause)

    def reached(self, due_at: object) -> None:
        """A full batch ended with this moment; None after one that was not full."""
        self._reached = due_at

    def _looks(self, suspects: bool, next_at: float) -> None:
        """Whoever looks for suspects sees everything else, too."""
        self._look_at[False] = next_at
        if suspects:
            self._look_at[True] = next_at
