"""Bulk actions: actions that run on many events. Show their progress, stop one, and resume one that was interrupted.

The audit entry of a bulk action records its filter and parameters, how many events matched at its start, how many it
has changed, and the last one that it has read. The process that the operator has asked runs it: a command, or the
dashboard. Any process can ask it to stop. After that any process can resume it: a second audit entry then names the
first one.
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

# A bulk action reports with each batch. Without a report for this long, its process was most likely killed.
SILENT_AFTER = timedelta(minutes=2)
# The name in the audit log of the operator's request to stop.
STOP = "stop"

RUNNING, STOPPING, STOPPED, LOST, ENDED = "running", "stopping", "interrupted", "no report", "done"


@dataclass(frozen=True, slots=True)
class BulkAction:
    """One run of an action on many events, and its progress."""

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


def bulk_action_of(entry: Audit, now: datetime) -> BulkAction | None:
    """Return the bulk action of an audit entry; None if the entry is about something else, or of an older version."""
    if entry.total is None:
        return None
    end = entry.seen_at if entry.ended_at is None else entry.ended_at
    seconds = 0.0 if end is None else (end - entry.at).total_seconds()
    per_second = entry.affected / seconds if seconds > 0 and entry.affected else None
    return BulkAction(entry, _state(entry, now), entry.affected, entry.total, per_second)


def stop(dialect: Dialect, id: UUID, *, operator: Operator) -> None:
    """Ask a bulk action to stop after its current batch. Raise RegistrationError if it is not running.

    The request gets an audit entry of its own: if the bulk action ends by itself first, its entry does not mention it.
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
    """Continue an interrupted bulk action with its filter and parameters, behind the last event that it has read.

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
    bulk = None if entry is None else bulk_action_of(entry, now)
    if entry is None or bulk is None:
        raise RegistrationError(f"There is no action {id} on many events.")
    if bulk.state in (RUNNING, STOPPING):
        raise RegistrationError(f"The action {id} is running.")
    if not bulk.can_resume or entry.position is None or entry.last_id is None:
        raise RegistrationError(f"The action {id} has nothing left to do.")
    return entry, Continued(entry.id, entry.position, entry.last_id)


def _state(entry: Audit, now: datetime) -> str:
    if entry.ended_at is not None:
        return ENDED if entry.outcome == DONE else STOPPED
    if entry.seen_at is None or now - entry.seen_at > SILENT_AFTER:
        return LOST
    return STOPPING if entry.stop_by is not None else RUNNING
