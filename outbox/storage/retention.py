"""Clean-up: delete what ended long ago, in small bites, without getting in anybody's way."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from outbox.destinations.retirement import retire_absent
from outbox.errors import SettingsError
from outbox.storage import timestamp
from outbox.storage.dialect import Dialect
from outbox.storage.ids import as_uuid, first_uuid7_of
from outbox.storage.schema import explaining

if TYPE_CHECKING:
    from outbox.core import Outbox

BATCH = 500
REMAINING_CAP = 1_000
# On SQLite a bite holds the only write lock: between two of them, everybody else gets a chance.
PAUSE_SECONDS = 0.01
# Ids are made by the emitters' clocks: look this much further than the database's cut-off.
CLOCK_LEEWAY = timedelta(days=1)
# How long records are kept that operators look at.
PROCESS_DAYS, MINUTE_DAYS, AUDIT_DAYS = 1, 2, 90

_FIRST = UUID(int=0)


def cleanup_delivered_events(
    box: Outbox, retention_hours: float | None = None, *, seconds: float | None = None
) -> dict[str, int]:
    """Delete delivered and failed events that ended longer ago than the retention.

    Stops after `seconds`, if given; `remaining` says how many are left to delete, counted up to a cap.
    """
    hours = box.settings.retention_hours if retention_hours is None else retention_hours
    if hours < 0:
        raise SettingsError(f"retention_hours must not be negative, not {hours}.")
    ends_at = None if seconds is None else time.monotonic() + seconds
    deleted, remaining = 0, 0
    with box.dialect.connection():
        age = box.dialect.seconds(hours * 3600)
        newest = box.dialect.id(first_uuid7_of(_now(box) - timedelta(hours=hours) + CLOCK_LEEWAY))
        after = _FIRST
        while bite := _delete(box, age, after, newest):
            deleted += len(bite)
            after = max(bite)
            if box.stopping.is_set() or (ends_at is not None and time.monotonic() >= ends_at):
                remaining = _count(box, age, newest)
                break
            time.sleep(PAUSE_SECONDS)
    return {"deleted": deleted, "remaining": remaining}


def cleanup_inbox(dialect: Dialect, hours: float, *, seconds: float | None = None) -> dict[str, int]:
    """Forget messages that were dealt with longer ago than so many hours; likewise."""
    if hours < 0:
        raise SettingsError(f"retention_hours must not be negative, not {hours}.")
    ends_at = None if seconds is None else time.monotonic() + seconds
    deleted = remaining = 0
    database, statements = dialect.database, dialect.statements
    with dialect.connection(), explaining(dialect):
        age = dialect.seconds(hours * 3600)
        while bite := int(database.execute_sql(statements.inbox_delete, (age, BATCH)).rowcount):
            deleted += bite
            if ends_at is not None and time.monotonic() >= ends_at:
                remaining = int(database.execute_sql(statements.inbox_count, (age, REMAINING_CAP)).fetchone()[0])
                break
            time.sleep(PAUSE_SECONDS)
    return {"deleted": deleted, "remaining": remaining}


def count_ended(box: Outbox, retention_hours: float | None = None) -> int:
    """How many a clean-up would delete, counted up to a cap."""
    hours = box.settings.retention_hours if retention_hours is None else retention_hours
    with box.dialect.connection():
        newest = box.dialect.id(first_uuid7_of(_now(box) - timedelta(hours=hours) + CLOCK_LEEWAY))
        return _count(box, box.dialect.seconds(hours * 3600), newest)


def forget_records(box: Outbox) -> None:
    """What operators are told by: processes that have fallen silent, old minutes, and what was done long ago.

    And destinations that no worker has had for OUTBOX_MAX_AGE_HOURS are retired.
    """
    retire_absent(box.dialect, box.settings)
    statements = box.dialect.statements
    with box.dialect.connection():
        for statement, days in (
            (statements.forget_processes, PROCESS_DAYS),
            (statements.forget_minutes, MINUTE_DAYS),
            (statements.forget_audit, AUDIT_DAYS),
        ):
            box.dialect.run(statement, (box.dialect.seconds(days * 86_400),))


def _delete(box: Outbox, age: object, after: UUID, newest: object) -> list[UUID]:
    parameters = (age, box.dialect.id(after), newest, BATCH)
    rows = box.dialect.run(box.dialect.statements.delete_ended, parameters).fetchall()
    return [as_uuid(id) for (id,) in rows]


def _count(box: Outbox, age: object, newest: object) -> int:
    parameters = (age, box.dialect.id(_FIRST), newest, REMAINING_CAP)
    return int(box.dialect.run(box.dialect.statements.count_ended, parameters).fetchone()[0])


def _now(box: Outbox) -> datetime:
    return timestamp.from_database(box.dialect.run(box.dialect.statements.now).fetchone()[0])
