"""The history of attempts: when a destination was tried with an event, for how long, and how that ended.

The events' rows hold only the last error. OUTBOX_ATTEMPTS decides which attempts are kept here. An event keeps its
newest ones, and all are deleted after the retention.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from outbox.storage import timestamp
from outbox.storage.dialect import Dialect
from outbox.storage.operator_models import Attempt

# What OUTBOX_ATTEMPTS may be: which attempts are kept.
FAILURES, ALL, NONE = KEPT = ("failures", "all", "none")
# How many attempts of an event are kept.
MOST_PER_EVENT = 20
# How much of an error is kept.
ERROR_LENGTH = 300

# How many of the newest attempts are read to find those of one destination.
NEWEST_READ = 2_000

BATCH = 5_000
PAUSE_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Tried:
    """One attempt: the destination, when it began, how many seconds it took, and how it ended."""

    destination: str
    at: datetime
    seconds: float
    # "delivered", "retry", "unavailable" or "failed".
    outcome: str
    http_status: int | None
    error: str | None


def add_attempts(
    dialect: Dialect, attempts: Collection[tuple[str, Tried]], worker: str, *, are_first: bool = False
) -> None:
    """Add attempts, each with the id of its event as a claim returned it; delete the oldest if an event has too many.

    `are_first`: the events have no attempts yet, and get at most MOST_PER_EVENT, so nothing has to be deleted.
    """
    items = json.dumps(
        [
            {
                "event_id": row_id,
                "destination": each.destination,
                "at": timestamp.to_text(each.at),
                "seconds": round(each.seconds, 6),
                "outcome": each.outcome,
                "http_status": each.http_status,
                "error": each.error,
                "worker": worker,
            }
            for row_id, each in attempts
        ]
    )
    if are_first:
        dialect.run(dialect.statements.attempts_add_first, (items,))
    elif dialect.name == "postgres":
        dialect.run(dialect.statements.attempts_add, (items, MOST_PER_EVENT))
    else:
        with dialect.atomic():
            dialect.run(dialect.statements.attempts_add, (items,))
            dialect.run(dialect.statements.attempts_trim, (items, MOST_PER_EVENT))


def read_attempts(dialect: Dialect, event_id: UUID) -> list[Attempt]:
    """Return the attempts of an event that are kept, the oldest first."""
    query = Attempt.select().where(Attempt.event_id == event_id).order_by(Attempt.id)
    with dialect.connection():
        return dialect.select(query)


def failed_attempts_at(dialect: Dialect, destination: str, limit: int) -> list[Attempt]:
    """Return the latest failed attempts at a destination, the newest first, among the newest attempts of all events."""
    wanted = [Attempt.destination == destination, Attempt.outcome != "delivered"]
    beyond = Attempt.select(Attempt.at).order_by(Attempt.at.desc()).offset(NEWEST_READ).limit(1)
    with dialect.connection():
        wanted += [Attempt.at > each.at for each in dialect.select(beyond)]
        return dialect.select(Attempt.select().where(*wanted).order_by(Attempt.at.desc()).limit(limit))


def forget_attempts(dialect: Dialect, ids: Sequence[UUID]) -> None:
    """Delete the attempts of these events."""
    if ids:
        dialect.run(dialect.statements.attempts_forget, (dialect.ids(ids),))


def delete_old_attempts(dialect: Dialect, hours: float) -> int:
    """Delete the attempts that are older than this, in batches; return how many."""
    deleted = 0
    parameters = (dialect.seconds(hours * 3600), BATCH)
    with dialect.connection():
        while batch := int(dialect.run(dialect.statements.attempts_forget_old, parameters).rowcount):
            deleted += batch
            time.sleep(PAUSE_SECONDS)
    return deleted
