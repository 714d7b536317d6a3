"""An alarm: something is done at a time, or a little later; of several times, the earliest is enough."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

# Times closer together than this are one.
GRAIN_SECONDS = 0.05


class Timer:
    """Calls `ring` when a time has come, from a thread that lives only while one is set."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._changed = threading.Condition()
        self._times: set[float] = set()
        self._thread: threading.Thread | None = None

    def set(self, seconds: float) -> None:
        """Ring after so many seconds."""
        with self._changed:
            self._times.add(_rounded(time.monotonic() + max(0.0, seconds)))
            self._changed.notify()
            if self._thread is None:
                thread = threading.Thread(target=self._wait, name="outbox-timer", daemon=True)
                with contextlib.suppress(RuntimeError):  # no room for one more: sweeps come all the same
                    thread.start()
                    self._thread = thread

    def _wait(self) -> None:
        while self._is_due():
            self._ring()

    def _is_due(self) -> bool:
        """Wait for the next time; the thread ends when there is none."""
        with self._changed:
            while self._times:
                left = min(self._times) - time.monotonic()
                if left <= 0:
                    self._times = {at for at in self._times if at > time.monotonic()}
                    return True
                self._changed.wait(left)
            self._thread = None
            return False


def _rounded(moment: float) -> float:
    """Up, to the grain: what is due then is due."""
    return (moment // GRAIN_SECONDS + 1) * GRAIN_SECONDS
