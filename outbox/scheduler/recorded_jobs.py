"""Read and change the table of periodic jobs, for the scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from outbox.destinations.periodic_job import PeriodicJob
from outbox.storage import timestamp
from outbox.storage.dialect import Dialect


@dataclass(frozen=True, slots=True)
class RecordedJob:
    """What the table says about a job, and the time of the database's clock when it was read."""

    name: str
    schedule: str
    timezone: str
    paused: bool
    seen_at: datetime
    scheduled_from: datetime
    last_scheduled_at: datetime | None
    next_run_at: datetime | None
    requested_at: datetime | None
    now: datetime

    def has_schedule_of(self, job: PeriodicJob) -> bool:
        """Return whether the schedule that was declared last is the one that this process has declared."""
        return (self.schedule, self.timezone) == (job.schedule.text, job.schedule.timezone)

    @property
    def after(self) -> datetime:
        """Return the time after which the scheduled times are still to be run."""
        return max(self.scheduled_from, self.last_scheduled_at or self.scheduled_from)


class RecordedJobs:
    """The table of periodic jobs. All methods need a connection (`Dialect.connection`)."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._statements = dialect.statements

    def read(self) -> Mapping[str, RecordedJob]:
        """Return all jobs by name."""
        rows = self._dialect.run(self._statements.periodic_jobs).fetchall()
        jobs = (
            RecordedJob(name, schedule, zone, bool(paused), *(_moment(each) for each in moments))  # type: ignore[arg-type]
            for name, schedule, zone, paused, *moments in rows
        )
        return {job.name: job for job in jobs}

    def declare(self, job: PeriodicJob) -> None:
        """Record that this process has the job, with its schedule."""
        schedule = job.schedule
        values = (job.name, job.kind, schedule.text, schedule.words, schedule.timezone)
        self._dialect.run(self._statements.periodic_declare, values)

    def refresh(self, job: PeriodicJob) -> None:
        """Record that a scheduler still has the job."""
        self._dialect.run(self._statements.periodic_seen, (job.name, job.schedule.text, job.schedule.timezone))

    def plan(self, recorded: RecordedJob, next_run_at: datetime) -> None:
        """Record the next time, unless another scheduler has changed it."""
        values = (timestamp.to_text(next_run_at), recorded.name, _text(recorded.next_run_at))
        self._dialect.run(self._statements.periodic_plan, values)

    def advance(self, recorded: RecordedJob, last: datetime, next_run_at: datetime) -> bool:
        """Record the last scheduled time that is dealt with; return False if another scheduler has changed it.

        If it returns True, the caller stores the runs in the same transaction.
        """
        values = (
            timestamp.to_text(last),
            timestamp.to_text(next_run_at),
            recorded.name,
            _text(recorded.last_scheduled_at),
            recorded.schedule,
            recorded.timezone,
        )
        return bool(self._dialect.run(self._statements.periodic_advance, values).rowcount == 1)

    def take_request(self, recorded: RecordedJob) -> bool:
        """Remove the operator's request for a run; return False if another scheduler has taken it."""
        values = (recorded.name, _text(recorded.requested_at))
        return bool(self._dialect.run(self._statements.periodic_take_request, values).rowcount == 1)

    def stored(self, name: str, scheduled_at: datetime, id: UUID) -> None:
        """Record the last run that was stored."""
        values = (timestamp.to_text(scheduled_at), self._dialect.id(id), name)
        self._dialect.run(self._statements.periodic_stored, values)

    def skipped(self, name: str, scheduled_at: datetime, why: str) -> None:
        """Record a scheduled time for which no run was stored."""
        self._dialect.run(self._statements.periodic_skipped, (timestamp.to_text(scheduled_at), why, name))

    def is_unfinished(self, name: str) -> bool:
        """Return whether the last run that was stored is neither delivered nor failed."""
        return self._dialect.run(self._statements.periodic_unfinished, (name,)).fetchone() is not None


def _moment(value: datetime | str | None) -> datetime | None:
    return None if value is None else timestamp.from_database(value)


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else timestamp.to_text(moment)
