"""The timetable: which messages the scheduler sends to the workers, and how often it looks for due periodic jobs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from apscheduler.schedulers.background import BackgroundScheduler

from outbox.core import Outbox
from outbox.dramatiq import wakeup
from outbox.scheduler.store_runs import StoreRuns
from outbox.settings import Settings

logger = logging.getLogger(__name__)

# How often the scheduler looks for periodic jobs that are due.
PERIODIC_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Tick:
    """A message that the scheduler enqueues at a fixed interval. The worker that takes it does the work."""

    name: str
    every: timedelta
    run: Callable[[], None]

    def __call__(self) -> None:
        """Enqueue the message. An error is only logged, because the next tick tries again."""
        try:
            self.run()
        except Exception as error:
            logger.warning("%s: could not enqueue the message; the next try is in %s: %s", self.name, self.every, error)


def timetable(settings: Settings) -> list[Tick]:
    """Return the ticks: a sweep every OUTBOX_SWEEP_SECONDS, and a clean-up every OUTBOX_CLEANUP_MINUTES.

    A sweep makes a worker deliver the events that are due. A clean-up makes a worker delete old events.
    """
    return [
        Tick("sweep", timedelta(seconds=settings.sweep_seconds), wakeup.send_sweep),
        Tick("clean-up", timedelta(minutes=settings.cleanup_minutes), wakeup.send_clean_up),
    ]


def make_scheduler(settings: Settings) -> BackgroundScheduler:
    """Return a scheduler for the timetable, not yet started.

    It runs in UTC, because local time zones repeat or skip an hour. A late tick runs once, however late it is;
    APScheduler's default is to drop a tick that is a second late. The jobs are stored in memory, and an additional tick
    does no harm, so two schedulers may run at the same time.
    """
    scheduler = BackgroundScheduler(
        timezone=UTC, job_defaults={"misfire_grace_time": None, "coalesce": True, "max_instances": 1}
    )
    for tick in timetable(settings):
        # The first tick comes at once. Otherwise a scheduler that is restarted often would never send a clean-up.
        scheduler.add_job(
            tick, "interval", seconds=tick.every.total_seconds(), id=tick.name, next_run_time=datetime.now(UTC)
        )
    return scheduler


def add_periodic_jobs(scheduler: BackgroundScheduler, box: Outbox) -> None:
    """Make the scheduler store the runs of the periodic jobs that are registered in this process, if there are any."""
    jobs = box.registry.periodic
    if jobs:
        scheduler.add_job(
            StoreRuns(box, jobs),
            "interval",
            seconds=PERIODIC_SECONDS,
            id="periodic jobs",
            next_run_time=datetime.now(UTC),
            max_instances=2,  # with 1, APScheduler logs a warning every second while a call hangs
        )
