"""The scheduler as a process that ends cleanly."""

from __future__ import annotations

import logging
import signal
import threading
from types import FrameType

import outbox
from outbox.publish import SCHEDULER
from outbox.scheduler.timetable import make_scheduler
from outbox.settings import Settings

logger = logging.getLogger("outbox")


def stop_signal() -> threading.Event:
    """An event that SIGTERM and SIGINT set. APScheduler itself would die in the middle of a tick."""
    stopped = threading.Event()

    def stop(signum: int, frame: FrameType | None) -> None:
        stopped.set()

    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, stop)
    return stopped


def run(settings: Settings) -> None:
    """Tick until a signal comes; a tick that is running then is finished."""
    stopped = stop_signal()
    scheduler = make_scheduler(settings)
    scheduler.start()
    if settings.names_database:
        outbox.current().publisher.start(SCHEDULER)
    logger.info(
        "scheduler started: a sweep every %g s, a clean-up every %g min",
        settings.sweep_seconds,
        settings.cleanup_minutes,
    )
    stopped.wait()
    scheduler.shutdown(wait=True)
    if settings.names_database:
        outbox.current().publisher.stop()
    logger.info("scheduler stopped")
