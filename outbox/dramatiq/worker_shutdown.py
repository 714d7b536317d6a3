"""Stop a worker process so that the batches in flight are finished.

A Dramatiq worker process takes a second SIGTERM as "stop at once". But process managers signal whole groups: honcho
the process group, systemd the control group. Each worker process then gets SIGTERM from the manager and again from
Dramatiq's main process, and would end in the middle of a batch. So a worker process leaves the process group and
treats signals within two seconds as one. The group's final SIGKILL does not reach it either; therefore it stops by
itself when its main process is gone.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from types import FrameType

logger = logging.getLogger(__name__)

# Signals within this time count as one; a later one still means "stop at once".
SAME_SIGNAL_SECONDS = 2.0
PARENT_SECONDS = 1.0


def prepare() -> None:
    """Prepare a process that is about to become a worker; do nothing in one that Dramatiq did not start."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    stop = signal.getsignal(signal.SIGTERM)
    if callable(stop):
        handler = StopOnce(stop)
        signal.signal(signal.SIGTERM, handler)
        threading.Thread(
            target=_stop_with_parent, args=(parent.sentinel, os.getppid(), handler), name="outbox-parent", daemon=True
        ).start()


class StopOnce:
    """A signal handler that passes a signal on, and ignores another one soon after it."""

    def __init__(self, stop: Callable[[int, FrameType | None], object]) -> None:
        self._stop = stop
        self.received_at: float | None = None

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.received_at is None or now - self.received_at >= SAME_SIGNAL_SECONDS:
            self.received_at = now
            self._stop(signum, frame)


def _stop_with_parent(sentinel: int, main: int, handler: StopOnce) -> None:
    """Wait until the main process is gone, then stop this one."""
    # Processes that were forked later hold the other end of the sentinel as well, so it may signal late.
    while os.getppid() == main and not wait([sentinel], PARENT_SECONDS):
        pass
    _log_to_stderr()
    logger.warning("The main process is gone. This worker process finishes its batches and ends as well.")
    if handler.received_at is None:  # if it is stopping already, another signal would mean "at once"
        os.kill(os.getpid(), signal.SIGTERM)


def _log_to_stderr() -> None:
    """Print and log to stderr instead of the pipe to the main process.

    No process reads the pipe any more; once it is full, every thread that prints would block.
    """
    sys.stdout = sys.stderr = sys.__stderr__
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(sys.__stderr__)
