"""Periodic jobs as tests see them: schedulers that tick by hand, the table, and time as tests move it."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import outbox
from outbox.core import Outbox
from outbox.scheduler.store_runs import StoreRuns
from outbox.storage.models import EVENT, RUN, OutboxEvent
from outbox.storage.operator_models import Periodic

MOMENTS = (
    "declared_at", "scheduled_from", "last_scheduled_at", "next_run_at", "requested_at", "last_run_at",
    "skipped_at",
)  # fmt: skip


def scheduler(box: Outbox) -> StoreRuns:
    """A scheduler with the jobs that are declared now; each call is a tick. Errors are raised."""

    class Strict(StoreRuns):
        def _log(self, what: str, error: Exception) -> None:
            raise AssertionError(what) from error

    return Strict(box, box.registry.periodic)


def declared(box: Outbox, name: str = "job") -> Periodic:
    """The job's row."""
    with box.dialect.connection():
        (found,) = box.dialect.select(Periodic.select().where(Periodic.name == name))
    assert isinstance(found, Periodic)
    return found


def let_job_age(box: Outbox, name: str = "job", **time: float) -> None:
    """As if that much time had passed for the job: all times in its row move into the past, but for the next run.

    A scheduler calculates the next run again. When a scheduler was last seen stays as it is. The same scheduled time
    may come again, so the keys of runs are changed.
    """
    for run in OutboxEvent.select(OutboxEvent.id).where(OutboxEvent.kind != EVENT):
        OutboxEvent.update(idempotency_key=str(run.id)).where(OutboxEvent.id == run.id).execute()
    job, back = declared(box, name), timedelta(**time)
    moved = {each: getattr(job, each) - back for each in MOMENTS if getattr(job, each) is not None}
    change_job(box, name, **moved | {"next_run_at": None})


def change_job(box: Outbox, name: str = "job", **fields: Any) -> None:
    """Write into the job's row."""
    with box.dialect.connection():
        Periodic.update(**fields).where(Periodic.name == name).execute(box.database)


def runs(box: Outbox, name: str = "job") -> list[OutboxEvent]:
    """The rows of the function's runs, oldest first."""
    with box.dialect.connection():
        query = OutboxEvent.select().where(OutboxEvent.kind == RUN, OutboxEvent.event_type == name)
        return box.dialect.select(query.order_by(OutboxEvent.seq))


def scheduled_times(box: Outbox, name: str = "job") -> list[datetime]:
    """The times that the stored runs of a function are for, in the order in which they were stored."""
    return [datetime.fromisoformat(run.payload["scheduled_at"]) for run in runs(box, name)]


def declare(**options: Any) -> Callable[[outbox.Run], None]:
    """Declare a function called `job`, by default every hour; its runs are appended to its list `done`."""
    done: list[outbox.Run] = []
    if not {"cron", "minutes", "seconds", "days"} & options.keys():
        options.setdefault("hours", 1)
    options.setdefault("name", "job")

    @outbox.periodic(**options)
    def job(run: outbox.Run) -> None:
        done.append(run)

    vars(job)["done"] = done
    return job


def done(job: Any) -> list[outbox.Run]:
    """The runs with which the function was called."""
    found: list[outbox.Run] = job.done
    return found


def whole_hour(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
