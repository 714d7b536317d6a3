"""Stopping a worker process so that the batches in flight finish.

Dramatiq's worker processes take a second SIGTERM as "at once". But process managers signal whole groups: honcho the
process group, systemd the control group. Each worker then hears it from the manager and again from Dramatiq's own
main process, and dies in mid-batch. So a worker leaves the group, hears repeated signals as one, and, since a group's
final SIGKILL does not reach it either, stops by itself when its main process is gone.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from multiprocessing.connection import wait
from types import FrameType

# Signals that come closer together than this are one; a later one still means "at once".
SAME_SIGNAL_SECONDS = 2.0


def prepare() -> None:
    """Called in a process that is about to become a worker; does nothing in one that nobody has forked."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    _hear_repeated_signals_once()
    threading.Thread(target=_stop_after, args=(parent.sentinel,), name="outbox-parent", daemon=True).start()


def _hear_repeated_signals_once() -> None:
    stop = signal.getsignal(signal.SIGTERM)
    if not callable(stop):
        return
    heard_at = -SAME_SIGNAL_SECONDS

    def hear(signum: int, frame: FrameType | None) -> None:
        nonlocal heard_at
        now = time.monotonic()
        if now - heard_at >= SAME_SIGNAL_SECONDS:
            heard_at = now
            stop(signum, frame)

    signal.signal(signal.SIGTERM, hear)


def _stop_after(parent: int) -> None:
    wait([parent])
    os.kill(os.getpid(), signal.SIGTERM)
