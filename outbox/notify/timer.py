"""Call a function at a time that was set, or a little later.

The notifier uses it for events that this process knows to be due soon, such as a retry in a few seconds. For times that
are close together the function is called once, because it looks for all events that are due, not for one.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

from outbox.background_thread import BackgroundThread

# Times are rounded up to a multiple of this, so that times close together become one.
GRAIN_SECONDS = 0.05


class Timer:
    """Calls `call` at each time that was set, from a thread that runs only while a time is set."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._thread = BackgroundThread("outbox-timer", self._run, after_fork=self._forget_times)
        self._forget_times()

    def _forget_times(self) -> None:
        """Set up the state without a time, in a forked child too."""
        self._times: set[float] = set()

    @property
    def is_running(self) -> bool:
        """Return whether a time is set."""
        return self._thread.is_running

    def set(self, seconds: float) -> None:
        """Call the function after this many seconds, from the timer's thread."""
        with self._thread.changed:
            self._times.add(_rounded_up(time.monotonic() + max(0.0, seconds)))
            self._thread.changed.notify()
            # If no thread can be started, the next call of `set` tries again. Until then sweeps find the due events.
            with contextlib.suppress(RuntimeError):
                self._thread.start()

    def _run(self, _: threading.Event) -> None:
        while self._thread.wait_for_work(lambda: bool(self._times)):
            self._wait_for_next_time()
            with self._thread.fork_lock:
                self._call()

    def _wait_for_next_time(self) -> None:
        """Wait for the earliest time, and remove the times that have come."""
        with self._thread.changed:
            while (left := min(self._times) - time.monotonic()) > 0:
                self._thread.changed.wait(left)
            now = time.monotonic()
            self._times = {at for at in self._times if at > now}


def _rounded_up(moment: float) -> float:
    """Round up to the grain, never down: an event that is due at `moment` is due at the result."""
    return (moment // GRAIN_SECONDS + 1) * GRAIN_SECONDS
