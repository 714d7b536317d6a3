"""Store the runs of periodic jobs when they are due. The scheduler calls `StoreRuns` once a second.

Each scheduled time is stored exactly once, even if several schedulers run: the transaction that stores a run also
advances the job's last scheduled time, by compare-and-set, and only one scheduler succeeds. A run that was deleted from
the table since is not stored again. The database's clock decides what is due.

A job is *declared* in the code of this process, and *recorded* in the database (`recorded_jobs.py`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from datetime import datetime, timedelta

from outbox.core import Outbox
from outbox.destinations.periodic_job import BY_HAND, SCHEDULED_AT, SKIP, PeriodicJob
from outbox.dramatiq.periodic_actor import store_run
from outbox.errors import describe
from outbox.events.encoding import encode_object
from outbox.events.validate import Draft
from outbox.scheduler.missed_times import MOST_RUNS, DueTimes, due_times
from outbox.scheduler.recorded_jobs import RecordedJob, RecordedJobs
from outbox.storage import timestamp
from outbox.storage.connection_errors import CONNECTION_ERRORS
from outbox.storage.dialect import AT_ONCE
from outbox.storage.ids import uuid7
from outbox.storage.models import RUN
from outbox.telemetry import tracing
from outbox.text import one_line

logger = logging.getLogger(__name__)

# How often a scheduler updates `seen_at` of its jobs, as a heartbeat.
REFRESH_SECONDS = 20.0
# If the heartbeat of a job is older than this, a scheduler that has declared another schedule for it records its own.
TAKE_OVER = timedelta(minutes=1)
# The same error is logged again after this time.
LOG_AGAIN_SECONDS = 60.0

NOT_ENDED = "the run before it had not ended"
MISSED = "no scheduler stored it in time"


class StoreRuns:
    """Stores the runs that are due, of the jobs that this process has declared. Call it about once a second.

    It never raises an error: an error is logged in one line, and the next call tries again. While one call is running,
    perhaps waiting for a database host that does not respond, others return at once.
    """

    def __init__(
        self, box: Outbox, jobs: Mapping[str, PeriodicJob], *, refresh_seconds: float = REFRESH_SECONDS
    ) -> None:
        self._box = box
        self._jobs = jobs
        self._refresh_seconds = refresh_seconds
        self._recorded = RecordedJobs(box.dialect)
        self._is_declared = False
        self._refreshed_at = 0.0
        self._logged_at: dict[str, float] = {}
        self._left_to_others: set[str] = set()
        self._running = threading.Lock()

    def __call__(self) -> None:
        """Store the runs that are due now, unless another call is doing that."""
        if not self._running.acquire(blocking=False):
            return
        try:
            self._store()
        finally:
            self._running.release()

    def _store(self) -> None:
        try:
            with self._box.dialect.connection():
                self._declare()
                recorded = self._recorded.read()
                for name, job in self._jobs.items():
                    self._try(job, recorded.get(name))
        except Exception as error:
            self._log("Could not store the runs of periodic jobs", error)

    def _declare(self) -> None:
        """Record the jobs at the first call. Later calls only record, now and then, that they still exist."""
        now = time.monotonic()
        if self._is_declared and now - self._refreshed_at < self._refresh_seconds:
            return
        for job in self._jobs.values():
            if self._is_declared:
                self._recorded.refresh(job)
            else:
                self._recorded.declare(job)
        self._is_declared, self._refreshed_at = True, now

    def _try(self, job: PeriodicJob, recorded: RecordedJob | None) -> None:
        """Store what is due of one job. An error does not affect the other jobs."""
        try:
            if recorded is None:  # an operator, or the clean-up, has deleted it
                self._recorded.declare(job)
            elif not recorded.has_schedule_of(job):
                self._leave_or_take_over(job, recorded)
            else:
                self._left_to_others.discard(job.name)
                self._look_at(job, recorded)
        except CONNECTION_ERRORS:
            raise  # the other jobs would fail as well
        except Exception as error:
            self._log(f"Could not store a run of the periodic job {job.name}", error)

    def _look_at(self, job: PeriodicJob, recorded: RecordedJob) -> None:
        if recorded.requested_at is not None:
            self._store_requested(job, recorded)
        if recorded.paused:
            return
        next_run_at = recorded.next_run_at
        if next_run_at is None:
            next_run_at = job.schedule.next_after(recorded.after)
            if next_run_at > recorded.now:
                self._recorded.plan(recorded, next_run_at)
        if next_run_at <= recorded.now:
            self._store_due(job, recorded)

    def _store_due(self, job: PeriodicJob, recorded: RecordedJob) -> None:
        due = due_times(job.schedule, job.catch_up, recorded.after, recorded.now)
        if due is None:
            self._recorded.plan(recorded, job.schedule.next_after(recorded.after))
            return
        with self._box.dialect.atomic():
            if not self._recorded.advance(recorded, due.last, job.schedule.next_after(due.last)):
                return  # another scheduler has stored these runs, or an operator has paused the job
            self._store_all(job, due)

    def _store_all(self, job: PeriodicJob, due: DueTimes) -> None:
        if due.missed is not None:
            self._skip(job, due.missed, MISSED)
        # If runs must not overlap, several missed runs can't be stored at once.
        runs = due.runs[-1:] if job.overlap == SKIP else due.runs
        if len(runs) == MOST_RUNS:
            logger.warning("Periodic job %s: stored the latest %d of the runs that were missed.", job.name, MOST_RUNS)
        for scheduled_at in runs:
            self._store_unless_overlapping(job, scheduled_at, by_hand=False)

    def _store_requested(self, job: PeriodicJob, recorded: RecordedJob) -> None:
        """Store the run that an operator has asked for. The schedule is not affected."""
        assert recorded.requested_at is not None  # noqa: S101  (for the type checker)
        with self._box.dialect.atomic():
            if self._recorded.take_request(recorded):
                self._store_unless_overlapping(job, recorded.requested_at, by_hand=True)

    def _store_unless_overlapping(self, job: PeriodicJob, scheduled_at: datetime, *, by_hand: bool) -> None:
        if job.overlap == SKIP and self._recorded.is_unfinished(job.name):
            self._skip(job, scheduled_at, NOT_ENDED)
            return
        key = f"{'by hand' if by_hand else 'scheduled'} {timestamp.to_text(scheduled_at)}"
        if job.function is None:
            id = store_run(job.actor, f"{job.name} {key}")
        else:
            id = self._box.emitter.store(self._draft(job, scheduled_at, key, by_hand=by_hand), "ignore").id
        self._recorded.stored(job.name, scheduled_at, id)

    def _draft(self, job: PeriodicJob, scheduled_at: datetime, key: str, *, by_hand: bool) -> Draft:
        """Return the row of a function's run."""
        settings = self._box.settings
        payload = {SCHEDULED_AT: timestamp.to_text(scheduled_at), BY_HAND: by_hand}
        return Draft(
            id=uuid7(),
            aggregate_type="periodic",
            aggregate_id=job.name,
            event_type=job.name,
            payload=encode_object(payload, "payload", settings.max_payload_bytes),
            headers=encode_object(tracing.with_context(None), "headers", settings.max_payload_bytes),
            correlation_id=None,
            tenant_id=None,
            idempotency_key=key,
            max_attempts=settings.max_attempts if job.max_attempts is None else job.max_attempts,
            ordering_key=None,
            order_state=None,
            kind=RUN,
            subject=None,
            due_at=AT_ONCE[0],
            due_in=AT_ONCE[1],
        )

    def _skip(self, job: PeriodicJob, scheduled_at: datetime, why: str) -> None:
        self._recorded.skipped(job.name, scheduled_at, why)
        logger.warning("Periodic job %s: the run of %s was skipped: %s.", job.name, scheduled_at.isoformat(), why)

    def _leave_or_take_over(self, job: PeriodicJob, recorded: RecordedJob) -> None:
        """Decide about a job for which another scheduler, which was started later, has recorded another schedule.

        Leave the job to that scheduler while it runs. Once its heartbeat is too old, record the schedule of this one.
        """
        if recorded.now - recorded.seen_at > TAKE_OVER:
            self._recorded.declare(job)
        elif job.name not in self._left_to_others:
            self._left_to_others.add(job.name)
            logger.warning(
                "Periodic job %s: another scheduler, which was started later, has declared it with the schedule %s "
                "(%s), so this scheduler no longer stores its runs. If the schedule was changed, stop the scheduler "
                "with the old one.",
                job.name,
                recorded.schedule,
                recorded.timezone,
            )

    def _log(self, what: str, error: Exception) -> None:
        """Log an error in one line, unless the same one was logged within the last minute."""
        line = f"{what}: {one_line(str(error)) or describe(error)}"
        now = time.monotonic()
        if now - self._logged_at.get(line, -LOG_AGAIN_SECONDS) >= LOG_AGAIN_SECONDS:
            self._logged_at[line] = now
            logger.warning("%s. The next try is in a second; the same error is logged once a minute.", line)
