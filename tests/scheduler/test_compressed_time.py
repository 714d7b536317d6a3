"""Hours of schedules in seconds: several schedulers, restarts and clean-ups, on a database whose clock the test sets.

Every statement that asks for the database's time reads it from a table of the test's own.
"""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import outbox
from outbox.core import Outbox
from outbox.destinations.periodic_job import PeriodicJob
from outbox.scheduler.store_runs import StoreRuns
from outbox.storage import timestamp
from outbox.storage.models import OutboxEvent
from outbox.storage.statements import Statements
from tests.support.periodic import runs

NOW = {"postgres": "statement_timestamp()", "sqlite": "strftime('%Y-%m-%d %H:%M:%f000+00:00', 'now')"}
READ = {"postgres": "(SELECT at FROM clock)", "sqlite": "(SELECT at FROM clock)"}
COLUMN = {"postgres": "timestamptz", "sqlite": "TEXT"}

# The night in which Berlin's clocks go back, and the one in which they go forward; and an ordinary hour.
AUTUMN = datetime(2026, 10, 24, 23, 30, tzinfo=UTC)
SPRING = datetime(2027, 3, 28, 0, 0, tzinfo=UTC)
NOON = datetime(2026, 11, 18, 12, 0, 0, 250_000, tzinfo=UTC)


class Clock:
    """The database's clock."""

    def __init__(self, box: Outbox, start: datetime) -> None:
        self._box = box
        self.now = start
        kind = box.dialect.name
        box.database.execute_sql(f"CREATE TABLE clock (at {COLUMN[kind]} NOT NULL)")
        box.database.execute_sql(f"INSERT INTO clock VALUES ('{timestamp.to_text(start)}')")  # noqa: S608
        statements = asdict(box.dialect.statements)
        box.dialect.statements = Statements(
            **{name: text.replace(NOW[kind], READ[kind]) for name, text in statements.items()}
        )

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
        self._box.database.execute_sql(f"UPDATE clock SET at = '{timestamp.to_text(self.now)}'")  # noqa: S608


def declare_jobs() -> None:
    schedules: dict[str, dict[str, Any]] = {
        "seconds": {"seconds": 7},
        "minutes": {"minutes": 5},
        "cron": {"cron": "*/10 * * * *"},
        "night": {"cron": "30 2 * * *", "timezone": "Europe/Berlin"},
        "half hours": {"cron": "*/30 * * * *", "timezone": "Europe/Berlin"},
    }
    for name, schedule in schedules.items():
        outbox.periodic(**schedule, name=name, catch_up="all")(lambda run: None)


def expected(job: PeriodicJob, start: datetime, end: datetime) -> list[datetime]:
    times = []
    time = job.schedule.next_after(start)
    while time <= end:
        times.append(time)
        time = job.schedule.next_after(time)
    return times


def watch(box: Outbox, stored: list[tuple[str, datetime]]) -> Callable[[], None]:
    """Return a clean-up that deletes all runs, and remembers them in `stored`."""

    def clean_up() -> None:
        for name in box.registry.periodic:
            stored.extend((name, datetime.fromisoformat(run.payload["scheduled_at"])) for run in runs(box, name))
        with box.dialect.connection():
            OutboxEvent.delete().execute(box.database)

    return clean_up


@pytest.mark.parametrize("start", [AUTUMN, SPRING, NOON], ids=["autumn", "spring", "noon"])
def test_every_scheduled_time_of_hours_is_stored_once(box: Outbox, start: datetime) -> None:
    chance = random.Random(start.day)  # noqa: S311  (the same at every run)
    clock = Clock(box, start)
    declare_jobs()
    jobs = box.registry.periodic
    stored: list[tuple[str, datetime]] = []
    clean_up = watch(box, stored)
    schedulers = [StoreRuns(box, jobs)]
    schedulers[0]()
    while clock.now < start + timedelta(hours=2, minutes=30):
        clock.advance(chance.choice([0.3, 1, 1, 5, 17, 60, 301]))
        match chance.randrange(12):
            case 0:
                schedulers.append(StoreRuns(box, jobs))  # another one starts, or one starts again
            case 1:
                schedulers = schedulers[-2:]  # some are killed
            case 2:
                clean_up()
        for scheduler in chance.sample(schedulers, chance.randint(0, len(schedulers))):
            scheduler()
    schedulers[-1]()
    clean_up()
    for name, job in jobs.items():
        times = [time for each, time in stored if each == name]
        assert Counter(times) == Counter(expected(job, start, clock.now)), name


def test_a_clock_that_is_set_back_repeats_nothing(box: Outbox) -> None:
    clock = Clock(box, NOON)
    declare_jobs()
    stored: list[tuple[str, datetime]] = []
    clean_up = watch(box, stored)
    scheduler = StoreRuns(box, box.registry.periodic)
    scheduler()
    for seconds in (3600, -1800, 600, -600, 1800, 1800):
        clock.advance(seconds)
        scheduler()
        StoreRuns(box, box.registry.periodic)()
        clean_up()
    times = [time for name, time in stored if name == "minutes"]
    assert Counter(times) == Counter(expected(box.registry.periodic["minutes"], NOON, clock.now))
