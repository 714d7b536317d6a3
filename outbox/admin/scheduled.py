"""List what is due later: events and jobs with a delay, and what waits for its next attempt."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import peewee

from outbox.admin.queries import LISTED
from outbox.storage.dialect import Dialect
from outbox.storage.models import OutboxEvent
from outbox.storage.status import IS_UNTRIED, is_unfinished
from outbox.storage.timestamp import LATEST

PAGE = 50
# How many of the rows that are due next are looked at: in an outage many events wait for a retry between two delayed
# ones.
WINDOW = 50_000


@dataclass(frozen=True, slots=True)
class Scheduled:
    """The rows that are due next, the first of them first; and the time up to which rows were read, if not all were."""

    events: list[OutboxEvent]
    read_until: datetime | None


def read_scheduled(
    dialect: Dialect, now: datetime, *, untried: bool, size: int = PAGE, window: int | None = None
) -> Scheduled:
    """Return rows that are due later than now: those that were never tried, or those that wait for a retry."""
    event, window = OutboxEvent, WINDOW if window is None else window
    later = [*is_unfinished(), event.next_attempt_at > now, event.next_attempt_at < LATEST]
    beyond = event.select(event.next_attempt_at).where(*later).order_by(event.next_attempt_at).offset(window).limit(1)
    condition = peewee.SQL(f"({IS_UNTRIED})" if untried else f"NOT ({IS_UNTRIED})")
    with dialect.connection():
        found = dialect.select(beyond)
        read_until = found[0].next_attempt_at if found else None
        within = [] if read_until is None else [event.next_attempt_at < read_until]
        query = event.select(*LISTED).where(*later, *within, condition).order_by(event.next_attempt_at, event.id)
        return Scheduled(dialect.select(query.limit(size)), read_until)
