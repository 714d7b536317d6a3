"""Actions on many events, as jobs: how far each is, how to stop one, and how to go on with one that was interrupted.

An audit entry is the record of such a job: its filter and parameters, how many events matched at its start, how many it
has changed, and the last one that it has looked at. The process that was asked runs it: a command, or the dashboard.
Any process can ask it to stop, and can go on with it once it has stopped; a further entry then says that it continues
the first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from outbox.destinations.registry import Registry
from outbox.errors import RegistrationError
from outbox.operations import apply_action
from outbox.operations.actions import ACTIONS, with_parameters
from outbox.operations.apply_action import Continued, NotifyAfterCommit
from outbox.operations.filters import Filter
from outbox.storage.dialect import Dialect
from outbox.storage.operator_models import Audit
from outbox.telemetry import audit
from outbox.telemetry.audit import DONE, Operator

# A job reports with each batch. Without a report for this long, its process was most likely killed.
SILENT_AFTER = timedelta(minutes=2)
# The name of the action of asking a job to stop, in the audit log.
STOP = "stop"

RUNNING, STOPPING, STOPPED, LOST, ENDED = "running", "stopping", "interrupted", "no report", "done"


@dataclass(frozen=True, slots=True)
class BulkJob:
    """One job, and how far it is."""

    entry: Audit
    state: str
    changed: int
    total: int
    # How many events a second it has changed so far; None if it has just begun.
    per_second: float | None

    @property
    def seconds_left(self) -> float | None:
        """Return how long it will take at this rate; None if it has ended, or the rate is not known."""
        if self.state != RUNNING or not self.per_second:
            return None
        return max(0, self.total - self.changed) / self.per_second

    @property
    def can_stop(self) -> bool:
        return self.state == RUNNING

    @property
    def can_resume(self) -> bool:
        has_more = self.entry.position is not None and self.entry.position != self.entry.last_id
        return self.state in (STOPPED, LOST) and has_more and self.entry.action in ACTIONS


def bulk_job_of(entry: Audit, now: datetime) -> BulkJob | None:
    """Return the job of an audit entry; None if the entry is about something else, or of an older version."""
    if entry.total is None:
        return None
    end = entry.seen_at if entry.ended_at is None else entry.ended_at
    seconds = 0.0 if end is None else (end - entry.at).total_seconds()
    per_second = entry.affected / seconds if seconds > 0 and entry.affected else None
    return BulkJob(entry, _state(entry, now), entry.affected, entry.total, per_second)


def stop(dialect: Dialect, id: UUID, *, operator: Operator) -> None:
    """Ask a job to stop after its current batch. Raise RegistrationError if it is not running.

    This is an action with an entry of its own: the entry of the job says nothing of it if the job ends by itself first.
    """
    with dialect.lock_limit(), dialect.atomic():
        if not audit.request_stop(dialect, id, operator):
            raise RegistrationError(f"The action {id} is not running: it has ended, or was asked to stop already.")
        audit.note(dialect, operator, STOP, {"stopped": str(id)})


def resume(
    dialect: Dialect,
    notify: NotifyAfterCommit,
    registry: Registry,
    id: UUID,
    *,
    operator: Operator,
    sleep: Callable[[float], object] = time.sleep,
) -> Generator[int]:
    """Go on with a job that was interrupted, with its filter and parameters, where it has ended.

    Raise RegistrationError if it is running, has done all its work, or can't be continued.
    """
    entry, continued = _find_interrupted(dialect, id)
    given = entry.parameters or {}
    limit = given.get("limit")
    action = with_parameters(
        ACTIONS[entry.action], dialect, registry, reason=given.get("reason", ""), destination=given.get("to")
    )
    return apply_action.apply(
        dialect,
        notify,
        action,
        Filter.from_json(entry.filters),
        operator=operator,
        limit=None if limit is None else limit - entry.affected,
        per_second=given.get("per_second"),
        continuing=continued,
        sleep=sleep,
    )


def _find_interrupted(dialect: Dialect, id: UUID) -> tuple[Audit, Continued]:
    entry = audit.find(dialect, id)
    with dialect.lock_limit():
        now = dialect.now()
    job = None if entry is None else bulk_job_of(entry, now)
    if entry is None or job is None:
        raise RegistrationError(f"There is no action {id} on many events.")
    if job.state in (RUNNING, STOPPING):
        raise RegistrationError(f"The action {id} is running.")
    if not job.can_resume or entry.position is None or entry.last_id is None:
        raise RegistrationError(f"The action {id} has nothing left to do.")
    return entry, Continued(entry.id, entry.position, entry.last_id)


def _state(entry: Audit, now: datetime) -> str:
    if entry.ended_at is not None:
        return ENDED if entry.outcome == DONE else STOPPED
    if entry.seen_at is None or now - entry.seen_at > SILENT_AFTER:
        return LOST
    return STOPPING if entry.stop_by is not None else RUNNING
