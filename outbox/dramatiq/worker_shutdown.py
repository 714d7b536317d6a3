"""Stop a worker process so that the batches in flight are finished.

To a Dramatiq worker process, a second SIGTERM means "stop at once". But process managers signal whole groups: honcho
signals the process group, systemd the control group. Each worker process then gets SIGTERM from the process manager and
again from Dramatiq's main process, and would end in the middle of a batch. So a worker process leaves the process
group, and treats signals within two seconds as one. After that, a SIGKILL to the process group does not reach the
worker process either. Therefore the worker process stops when its main process has ended.

If the main process is killed while the worker process boots, the worker's main thread never gets as far as stopping: it
tells the main process that it has booted, with `multiprocessing.Event.set()`, which waits until each process that waits
for the event has woken up. The other threads would go on delivering, without a supervisor. So the thread that watches
the main process stops the worker itself.
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

import dramatiq

logger = logging.getLogger(__name__)

# Signals within this time count as one. A later signal still means "stop at once".
SAME_SIGNAL_SECONDS = 2.0
# How often to check whether the main process is still running.
PARENT_SECONDS = 1.0
# How long the main thread may take to begin stopping after the main process has ended.
BEGIN_SECONDS = 30.0


def prepare() -> StopWithParent | None:
    """Leave the process group, and replace the SIGTERM handler. Do nothing in a process that Dramatiq did not start."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return None
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    stop = signal.getsignal(signal.SIGTERM)
    if not callable(stop):
        return None
    handler = StopOnce(stop)
    signal.signal(signal.SIGTERM, handler)
    watch = StopWithParent(parent.sentinel, os.getppid(), handler)
    watch.start()
    return watch


class StopOnce:
    """A signal handler that calls `stop`, and then ignores further signals for SAME_SIGNAL_SECONDS."""

    def __init__(self, stop: Callable[[int, FrameType | None], object]) -> None:
        self._stop = stop
        self.received_at: float | None = None

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.received_at is None or now - self.received_at >= SAME_SIGNAL_SECONDS:
            self.received_at = now
            self._stop(signum, frame)


class StopWithParent:
    """Stops this worker process when its main process has ended."""

    def __init__(self, sentinel: int, main_pid: int, handler: StopOnce) -> None:
        self._sentinel = sentinel
        self._main_pid = main_pid
        self._handler = handler
        self._worker: dramatiq.Worker | None = None
        self._begun = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="outbox-parent", daemon=True).start()

    def worker_has_booted(self, worker: dramatiq.Worker) -> None:
        self._worker = worker

    def worker_stops(self) -> None:
        self._begun.set()

    def _run(self) -> None:
        # The sentinel alone may be late: processes that were forked after this one also hold the other end of its pipe.
        while os.getppid() == self._main_pid and not wait([self._sentinel], PARENT_SECONDS):
            pass
        _log_to_stderr()
        logger.warning("The main process has ended. This worker process finishes its batches and ends too.")
        if self._handler.received_at is None:  # otherwise it is stopping already; another signal would mean "at once"
            os.kill(os.getpid(), signal.SIGTERM)
        if not self._begun.wait(BEGIN_SECONDS):
            self._stop_without_main_thread()

    def _stop_without_main_thread(self) -> None:
        logger.warning("The main process ended while this one booted: its main thread does not stop, so another does.")
        try:
            if self._worker is not None:
                self._worker.stop()
        finally:
            os._exit(0)


def _log_to_stderr() -> None:
    """Print and log to stderr instead of the pipe to the main process.

    No process reads the pipe any more. Once the pipe is full, every thread that prints would block.
    """
    sys.stdout = sys.stderr = sys.__stderr__
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(sys.__stderr__)
