"""Let time pass for the rows of the outbox: move their times into the past. No clock is changed.

The database's clock decides what is due. So changing Python's clock in a test has no effect.
"""

from __future__ import annotations

from datetime import timedelta

from outbox.core import Outbox
from outbox.current_outbox import current
from outbox.storage.models import OutboxEvent
from outbox.storage.progress import moved_back

# How many columns with times each of the statements changes.
EVENT_COLUMNS = 5


def advance(
    by: timedelta | None = None, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0
) -> None:
    """Let so much time pass: backoffs, leases, delays, the age of events and of the inbox's rows.

    - `by`: a timedelta.
    - `days`, `hours`, `minutes`, `seconds`: instead of it, or besides.
    """
    past = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds) + (timedelta(0) if by is None else by)
    if past < timedelta(0):
        raise ValueError(f"Time only passes: advance({past}) would make events younger than they are.")
    move_back(current(), past)


def move_back(box: Outbox, by: timedelta) -> None:
    """Move every time in the tables into the past."""
    dialect, inbox = box.dialect, box.inbox.dialect
    seconds = dialect.seconds(by.total_seconds())
    with dialect.connection(), dialect.atomic():
        dialect.run(dialect.statements.move_events_back, (seconds,) * EVENT_COLUMNS)
        dialect.run(dialect.statements.move_waiting_back, (seconds,))
        columns = (OutboxEvent.id, OutboxEvent.progress)
        for row in dialect.select(OutboxEvent.select(*columns).where(OutboxEvent.progress.is_null(False))):
            moved = OutboxEvent.update(progress=moved_back(row.progress, by)).where(OutboxEvent.id == row.id)
            dialect.execute(moved)
    with inbox.connection(), inbox.atomic():
        inbox.run(inbox.statements.move_inbox_back, (seconds,))
