"""The timetable, as data: what the scheduler does, and how often."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from apscheduler.schedulers.background import BackgroundScheduler

from outbox.dramatiq import wakeup
from outbox.settings import Settings

logger = logging.getLogger("outbox")


@dataclass(frozen=True, slots=True)
class Tick:
    """Something small that happens again and again: it enqueues a message, and the workers do the work."""

    name: str
    every: timedelta
    run: Callable[[], None]

    def __call__(self) -> None:
        try:
            self.run()
        except Exception as error:
            logger.warning("%s: nobody could be told, trying again in %s: %s", self.name, self.every, error)


def timetable(settings: Settings) -> list[Tick]:
    return [
        Tick("sweep", timedelta(seconds=settings.sweep_seconds), wakeup.sweep),
        Tick("clean-up", timedelta(minutes=settings.cleanup_minutes), wakeup.clean_up),
    ]


def make_scheduler(settings: Settings) -> BackgroundScheduler:
    """A scheduler with the timetable in it, not yet started.

    In UTC, since local zones double or skip an hour. A late tick runs once, however late it is: APScheduler's own
    default drops what is a second late. The jobs stay in memory, and every tick is harmless to repeat, so two
    schedulers at once do no more than one.
    """
    scheduler = BackgroundScheduler(
        timezone=UTC, job_defaults={"misfire_grace_time": None, "coalesce": True, "max_instances": 1}
    )
    for tick in timetable(settings):
        # The first time right away: a scheduler that restarts often must not put off a clean-up for ever.
        scheduler.add_job(
            tick, "interval", seconds=tick.every.total_seconds(), id=tick.name, next_run_time=datetime.now(UTC)
        )
    return scheduler
