"""The timetable: which messages the scheduler sends to the workers, and how often it looks for due periodic jobs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

from apscheduler.schedulers.background import BackgroundScheduler

from outbox.core import Outbox
from outbox.dramatiq import wakeup
from outbox.dramatiq.actor_names import CLEANUP, DELIVER
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


def timetable(settings: Settings, named: Iterable[Outbox] = ()) -> list[Tick]:
    """Return the ticks: a sweep every OUTBOX_SWEEP_SECONDS, and a clean-up every OUTBOX_CLEANUP_MINUTES.

    A sweep makes a worker deliver the events that are due. A clean-up makes a worker delete old events. The outboxes in
    `named` have their own, with their own settings.
    """
    return [
        Tick("sweep", timedelta(seconds=settings.sweep_seconds), wakeup.send_sweep),
        Tick("clean-up", timedelta(minutes=settings.cleanup_minutes), wakeup.send_clean_up),
        *(tick for box in named for tick in _ticks_of(box)),
    ]


def _ticks_of(box: Outbox) -> Iterator[Tick]:
    every = timedelta(seconds=box.settings.sweep_seconds)
    yield Tick(f"sweep of {box.name}", every, partial(wakeup.send_to, box, DELIVER))
    every = timedelta(minutes=box.settings.cleanup_minutes)
    yield Tick(f"clean-up of {box.name}", every, partial(wakeup.send_to, box, CLEANUP))


def make_scheduler(settings: Settings, named: Iterable[Outbox] = ()) -> BackgroundScheduler:
    """Return a scheduler for the timetable, not yet started.

    It runs in UTC, because local time zones repeat or skip an hour. A late tick runs once, however late it is;
    APScheduler's default is to drop a tick that is a second late. The jobs are stored in memory, and an additional tick
    does no harm, so two schedulers may run at the same time.
    """
    scheduler = BackgroundScheduler(
        timezone=UTC, job_defaults={"misfire_grace_time": None, "coalesce": True, "max_instances": 1}
    )
    for tick in timetable(settings, named):
        # The first tick comes at once. Otherwise a scheduler that is restarted often would never send a clean-up.
        scheduler.add_job(
            tick, "interval", seconds=tick.every.total_seconds(), id=tick.name, next_run_time=datetime.now(UTC)
        )
    return scheduler


def add_periodic_jobs(scheduler: BackgroundScheduler, box: Outbox, seconds: float = PERIODIC_SECONDS) -> None:
    """Make the scheduler store the runs of the periodic jobs that are registered in this process, if there are any."""
    jobs = box.registry.periodic
    if jobs:
        scheduler.add_job(
            StoreRuns(box, jobs),
            "interval",
            seconds=seconds,
            id="periodic jobs",
            next_run_time=datetime.now(UTC),
            # A call returns at once while another one hangs. With 1, APScheduler would log a warning every second then;
            # with 2, whenever the machine is so busy that two calls overlap.
            max_instances=10,
        )
