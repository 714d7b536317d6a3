"""Turn SIGTERM and SIGINT into an event that a process's main thread waits for.

The long-running commands (`outbox up`, `consume`, `scheduler`, `dashboard`) use it, so that they finish what is in
flight before they end. It imports nothing of the package: a command that needs only this loads neither Dramatiq nor
APScheduler.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType


def stop_on_signal() -> threading.Event:
    """Install handlers for SIGTERM and SIGINT, and return the event that they set.

    Without them, APScheduler would be interrupted in the middle of a tick.
    """
    stopped = threading.Event()

    def stop(signum: int, frame: FrameType | None) -> None:
        stopped.set()

    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, stop)
    return stopped
