"""Delete rows that are older than their retention: events that have ended, inbox messages, records for operators.

The scheduler asks a worker for it every hour, and `outbox cleanup` does it at once. Rows are deleted in small batches
with a pause between them, so that other transactions can write in between.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from uuid import UUID

from outbox.errors import SettingsError
from outbox.storage.attempts import delete_old_attempts
from outbox.storage.dialect import Dialect
from outbox.storage.ids import as_uuid, first_uuid7_of
from outbox.storage.schema import explaining_missing_inbox

BATCH = 500
REMAINING_CAP = 1_000
# On SQLite a batch holds the only write lock; in the pause other transactions can acquire it.
PAUSE_SECONDS = 0.01
# Ids contain the time of the emitter's clock, which may differ from the database's by this much.
CLOCK_LEEWAY = timedelta(days=1)
# How long the records for operators are kept.
PROCESS_DAYS, AUDIT_DAYS = 1, 90
# The same of the counts by the minute, by the quarter of an hour, and by the hour: a little longer than the range that
# the dashboard shows of each.
MINUTE_DAYS, QUARTER_DAYS, HOUR_DAYS = 0.25, 2, 8
# How long a periodic job is kept that no scheduler has. If it is declared again later, it is a new job.
PERIODIC_DAYS = 90

FIRST = UUID(int=0)


def cleanup_delivered_events(
    dialect: Dialect,
    hours: float,
    *,
    stopping: threading.Event,
    seconds: float | None = None,
    batch_size: int = BATCH,
    remaining_cap: int = REMAINING_CAP,
    on_deleted: Callable[[Sequence[UUID]], None] | None = None,
) -> dict[str, int]:
    """Delete delivered and failed events that ended more than `hours` ago.

    It stops after `seconds`, if given, and when the process is stopping. Return how many events were deleted, and how
    many remain to be deleted, counted up to `remaining_cap`. `on_deleted` is called with the ids of each batch, in the
    transaction that deletes it.
    """
    if hours < 0:
        raise SettingsError(f"retention_hours must not be negative, not {hours}.")
    ends_at = None if seconds is None else time.monotonic() + seconds
    deleted, remaining = 0, 0
    with dialect.connection():
        age = dialect.seconds(hours * 3600)
        below = id_limit(dialect, hours)
        after = FIRST
        while batch := _delete_and_tell(dialect, partial(_delete, dialect, age, after, below, batch_size), on_deleted):
            deleted += len(batch)
            after = max(batch)
            if stopping.is_set() or (ends_at is not None and time.monotonic() >= ends_at):
                remaining = count_remaining(dialect, age, below, remaining_cap)
                break
            time.sleep(PAUSE_SECONDS)
    return {"deleted": deleted, "remaining": remaining}


def cleanup_inbox(
    dialect: Dialect,
    hours: float,
    *,
    seconds: float | None = None,
    batch_size: int = BATCH,
    remaining_cap: int = REMAINING_CAP,
) -> dict[str, int]:
    """Delete the inbox's rows of messages that were processed more than `hours` ago.

    It stops after `seconds`, if given. Return the same as `cleanup_delivered_events`.
    """
    if hours < 0:
        raise SettingsError(f"retention_hours must not be negative, not {hours}.")
    ends_at = None if seconds is None else time.monotonic() + seconds
    deleted = remaining = 0
    with dialect.connection(), explaining_missing_inbox(dialect):
        age = dialect.seconds(hours * 3600)
        while batch := _delete_messages(dialect, age, batch_size):
            deleted += batch
            if ends_at is not None and time.monotonic() >= ends_at:
                count = dialect.database.execute_sql(dialect.statements.inbox_count, (age, remaining_cap))
                remaining = int(count.fetchone()[0])
                break
            time.sleep(PAUSE_SECONDS)
    return {"deleted": deleted, "remaining": remaining}


def _delete_messages(dialect: Dialect, age: object, size: int) -> int:
    with dialect.lock_limit():
        return int(dialect.database.execute_sql(dialect.statements.inbox_delete, (age, size)).rowcount)


def count_ended(dialect: Dialect, hours: float) -> int:
    """Return how many events `cleanup_delivered_events` would delete, counted up to REMAINING_CAP."""
    with dialect.lock_limit():
        return count_remaining(dialect, dialect.seconds(hours * 3600), id_limit(dialect, hours), REMAINING_CAP)


def delete_old_records(dialect: Dialect, retention_hours: float) -> None:
    """Delete old records for operators: processes that no longer report, counts by the minute, audit entries.

    Also delete the periodic jobs that no scheduler has had for long, and the attempts that are older than the
    retention of events.
    """
    delete_old_attempts(dialect, retention_hours)
    statements = dialect.statements
    with dialect.connection():
        for statement, days in (
            (statements.forget_processes, PROCESS_DAYS),
            (statements.forget_minutes, MINUTE_DAYS),
            (statements.forget_quarters, QUARTER_DAYS),
            (statements.forget_hours, HOUR_DAYS),
            (statements.forget_audit, AUDIT_DAYS),
            (statements.forget_audit_batches, AUDIT_DAYS),
            (statements.periodic_forget_old, PERIODIC_DAYS),
        ):
            with dialect.lock_limit():
                dialect.run(statement, (dialect.seconds(days * 86_400),))


def _delete(dialect: Dialect, age: object, after: UUID, below: object, size: int) -> list[UUID]:
    parameters = (age, dialect.id(after), below, size)
    rows = dialect.run(dialect.statements.delete_ended, parameters).fetchall()
    return [as_uuid(id) for (id,) in rows]


def _delete_and_tell(
    dialect: Dialect, delete: Callable[[], list[UUID]], on_deleted: Callable[[Sequence[UUID]], None] | None
) -> list[UUID]:
    """Delete a batch, and call `on_deleted` with its ids in the same transaction."""
    if on_deleted is None:
        with dialect.lock_limit():
            return delete()
    with dialect.lock_limit(), dialect.atomic():
        ids = delete()
        on_deleted(ids)
    return ids


def count_remaining(dialect: Dialect, age: object, below: object, cap: int) -> int:
    """Return how many events ended that long ago, counted up to `cap`."""
    parameters = (age, dialect.id(FIRST), below, cap)
    return int(dialect.run(dialect.statements.count_ended, parameters).fetchone()[0])


def id_limit(dialect: Dialect, hours: float) -> object:
    """Return an id as a parameter: all events that were emitted more than `hours` ago have lower ids."""
    return dialect.id(first_uuid7_of(dialect.now() - timedelta(hours=hours) + CLOCK_LEEWAY))
