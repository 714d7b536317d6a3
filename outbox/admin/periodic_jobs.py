"""Read the periodic jobs that schedulers have declared, with their last runs, for the command line and the dashboard.

The table has all that is needed: the application's modules are not imported.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from outbox.admin.durations import format_latency
from outbox.operations.periodic_jobs import ABSENT_AFTER
from outbox.storage.dialect import Dialect
from outbox.storage.models import DELIVERED, FAILED, SENDING, OutboxEvent
from outbox.storage.operator_models import Periodic
from outbox.storage.status import VERY_LATE

ACTOR = "actor"


@dataclass(frozen=True, slots=True)
class PeriodicView:
    """A periodic job, the row of its last run if it was not deleted yet, and the time of the database's clock."""

    job: Periodic
    last_run: OutboxEvent | None
    now: datetime

    @property
    def is_absent(self) -> bool:
        """Return whether no running scheduler has the job."""
        return bool(self.now - self.job.seen_at > ABSENT_AFTER)

    @property
    def overdue_seconds(self) -> float:
        """Return how long ago the next run should have been stored; 0 if it is not due yet, or the job is paused."""
        if self.job.paused or self.job.next_run_at is None:
            return 0.0
        return max(0.0, float((self.now - self.job.next_run_at).total_seconds()))

    @property
    def is_overdue(self) -> bool:
        """Return whether the next run should have been stored long ago."""
        return self.overdue_seconds > VERY_LATE.total_seconds()

    @property
    def state(self) -> str:
        if self.is_absent:
            return "no scheduler has it"
        return "paused" if self.job.paused else "scheduled"

    @property
    def next_run_at(self) -> datetime | None:
        """Return the next scheduled time, or None if none is expected."""
        return None if self.job.paused or self.is_absent else self.job.next_run_at

    @property
    def next_run_local(self) -> str:
        """Return the next scheduled time in the job's timezone; "" if none is expected."""
        return "" if self.next_run_at is None else to_local(self.next_run_at, self.job.timezone)

    @property
    def outcome(self) -> str:
        """Return what is known about the last run. Of an actor's run, that is when it was enqueued."""
        job, row = self.job, self.last_run
        if job.last_run_at is None:
            return "never ran"
        if row is not None and job.kind == ACTOR:
            return _outcome_of_message(row)
        if row is not None and row.status != DELIVERED:
            # The stored error begins with the name of the destination.
            return _outcome_of_unfinished(row, str(row.error_message).removeprefix(f"periodic:{job.name}: "))
        if job.ended_id == job.last_run_id and job.ended_seconds is not None:
            took = format_latency(job.ended_seconds)
            return f"succeeded in {took}" if job.ended_error is None else f"failed after {took}: {job.ended_error}"
        return "succeeded" if row is not None else "ended; its row was deleted after its retention"

    @property
    def skipped(self) -> str:
        """Return which time was skipped last, and why, if that was after the last run; otherwise "".

        A time that was skipped earlier no longer matters.
        """
        job = self.job
        if job.skipped_at is None or (job.last_run_at is not None and job.skipped_at < job.last_run_at):
            return ""
        return f"{job.skipped_at:%Y-%m-%d %H:%M:%S} was skipped: {job.skipped_why}"


def read_periodic_jobs(dialect: Dialect) -> list[PeriodicView]:
    """Return all periodic jobs, by name."""
    with dialect.bounded():
        now = dialect.now()
        jobs: list[Periodic] = dialect.select(Periodic.select().order_by(Periodic.name))
        ids = [job.last_run_id for job in jobs if job.last_run_id is not None]
        event = OutboxEvent
        columns = (
            event.id,
            event.status,
            event.attempts,
            event.next_attempt_at,
            event.delivered_at,
            event.error_message,
        )
        found = dialect.select(event.select(*columns).where(event.id.in_(ids))) if ids else []
    rows = {row.id: row for row in found}
    return [PeriodicView(job, rows.get(job.last_run_id), now) for job in jobs]


def to_local(moment: datetime, timezone: str) -> str:
    """Return a time in a timezone, such as `2026-01-31 03:00:00 CET`."""
    try:
        zone = ZoneInfo(timezone)
    except (ValueError, OSError, KeyError):
        return ""  # the scheduler's system knows the timezone, and this one does not
    return f"{moment.astimezone(zone):%Y-%m-%d %H:%M:%S %Z}"


def _outcome_of_message(row: OutboxEvent) -> str:
    if row.status == DELIVERED:
        return f"enqueued at {row.delivered_at:%Y-%m-%d %H:%M:%S}"
    if row.status == FAILED:
        return f"not enqueued: {row.error_message}"
    return "waits to be enqueued" if row.error_message is None else f"waits to be enqueued: {row.error_message}"


def _outcome_of_unfinished(row: OutboxEvent, error: str) -> str:
    if row.status == SENDING:
        return "running"
    if row.status == FAILED:
        return f"failed: {error}"
    if row.error_message is None:
        return "waits for a worker"
    return f"waits for its next attempt at {row.next_attempt_at:%Y-%m-%d %H:%M:%S}: {error}"
