"""Stopping a worker process so that the batches in flight finish.

Dramatiq's worker processes take a second SIGTERM as "at once". But process managers signal whole groups: honcho the
process group, systemd the control group. Each worker then hears it from the manager and again from Dramatiq's own
main process, and dies in mid-batch. So a worker leaves the group, hears repeated signals as one, and, since a group's
final SIGKILL does not reach it either, stops by itself when its main process is gone.
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

logger = logging.getLogger("outbox")

# Signals that come closer together than this are one; a later one still means "at once".
SAME_SIGNAL_SECONDS = 2.0
PARENT_SECONDS = 1.0


def prepare() -> None:
    """Called in a process that is about to become a worker; does nothing in one that nobody has forked."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    stop = signal.getsignal(signal.SIGTERM)
    if callable(stop):
        ear = Ear(stop)
        signal.signal(signal.SIGTERM, ear)
        threading.Thread(
            target=_outlive, args=(parent.sentinel, os.getppid(), ear), name="outbox-parent", daemon=True
        ).start()


class Ear:
    """Passes a signal on, and hears repeated ones as one."""

    def __init__(self, stop: Callable[[int, FrameType | None], object]) -> None:
        self._stop = stop
        self.heard_at: float | None = None

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.heard_at is None or now - self.heard_at >= SAME_SIGNAL_SECONDS:
            self.heard_at = now
            self._stop(signum, frame)


def _outlive(sentinel: int, main: int, ear: Ear) -> None:
    # Processes that were forked later hold the other end of the sentinel as well: it may be late.
    while os.getppid() == main and not wait([sentinel], PARENT_SECONDS):
        pass
    _find_voice()
    logger.warning("the main process is gone: this worker ends as well, when its batches are done")
    if ear.heard_at is None:  # once it is stopping, another signal would mean "at once"
        os.kill(os.getpid(), signal.SIGTERM)


def _find_voice() -> None:
    """What is printed and logged went through a pipe to the main process. Nobody reads it now, and once it is full
    it would hold up whoever prints.
    """
    sys.stdout = sys.stderr = sys.__stderr__
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(sys.__stderr__)
