"""The timetable: which messages the scheduler sends to the workers, and how often."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from apscheduler.schedulers.background import BackgroundScheduler

from outbox.dramatiq import wakeup
from outbox.settings import Settings

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Tick:
    """One periodic duty of the scheduler: it enqueues a message, and a worker does the work."""

    name: str
    every: timedelta
    run: Callable[[], None]

    def __call__(self) -> None:
        try:
            self.run()
        except Exception as error:
            logger.warning("%s: could not enqueue the message; the next try is in %s: %s", self.name, self.every, error)


def timetable(settings: Settings) -> list[Tick]:
    """Return what these settings ask for: a sweep every few seconds, a clean-up every few minutes."""
    return [
        Tick("sweep", timedelta(seconds=settings.sweep_seconds), wakeup.sweep),
        Tick("clean-up", timedelta(minutes=settings.cleanup_minutes), wakeup.clean_up),
    ]


def make_scheduler(settings: Settings) -> BackgroundScheduler:
    """Return a scheduler that runs the timetable; it is not started yet.

    It runs in UTC, since local time zones repeat or skip an hour. A late tick runs once, however late it is;
    APScheduler's default drops a tick that is a second late. The jobs are kept in memory, and a tick does no harm when
    it is repeated: so two schedulers may run at the same time.
    """
    scheduler = BackgroundScheduler(
        timezone=UTC, job_defaults={"misfire_grace_time": None, "coalesce": True, "max_instances": 1}
    )
    for tick in timetable(settings):
        # The first tick comes at once: otherwise a scheduler that is restarted often would never clean up.
        scheduler.add_job(
            tick, "interval", seconds=tick.every.total_seconds(), id=tick.name, next_run_time=datetime.now(UTC)
        )
    return scheduler
