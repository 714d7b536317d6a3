"""Turn SIGTERM and SIGINT into a threading.Event, for which a process's main thread waits.

The long-running commands (`outbox up`, `consume`, `scheduler`) use it, so that they finish the work that
is in flight before they end. The module imports nothing of the package, so that a command can use it without loading
Dramatiq or APScheduler.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType


def stop_on_signal() -> threading.Event:
    """Install handlers for SIGTERM and SIGINT, and return the event that they set.

    Without these handlers, a signal would interrupt APScheduler in the middle of a tick.
    """
    stopped = threading.Event()

    def stop(signum: int, frame: FrameType | None) -> None:
        stopped.set()

    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, stop)
    return stopped
