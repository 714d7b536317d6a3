"""Count the events that an action would change: for each type and status how many, and their oldest and newest time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import peewee

from outbox.operations.actions import Action
from outbox.operations.filters import Condition, Filter
from outbox.storage.dialect import Dialect
from outbox.storage.models import OutboxEvent

MOST_PARTS = 20


@dataclass(frozen=True, slots=True)
class Part:
    """The events of one type, or the jobs of one actor, that have the same status."""

    kind: str
    # The type of the events, or the actor of the jobs.
    name: str
    status: str
    count: int
    oldest: datetime
    newest: datetime


@dataclass(frozen=True, slots=True)
class Breakdown:
    """The largest parts, the largest first, and how many events the other parts have together."""

    parts: Sequence[Part]
    others: int

    @property
    def total(self) -> int:
        return sum(part.count for part in self.parts) + self.others


def breakdown(dialect: Dialect, action: Action, filter: Filter, most_parts: int = MOST_PARTS) -> Breakdown:
    """Return the counts of the events that the action would change. It counts all of them, which may take long."""
    return breakdown_of(dialect, [*filter.conditions(dialect.database), *action.conditions()], most_parts)


def breakdown_of(dialect: Dialect, conditions: Sequence[Condition], most_parts: int = MOST_PARTS) -> Breakdown:
    """Return the counts of the events that meet the conditions."""
    event = OutboxEvent
    group, number = (event.kind, event.event_type, event.status), peewee.fn.COUNT(event.id)
    oldest, newest = peewee.fn.MIN(event.created_at), peewee.fn.MAX(event.created_at)
    query = (
        event.select(*group, number, oldest, newest)
        .where(*conditions)
        .group_by(*group)
        .order_by(number.desc(), event.event_type)
        .limit(most_parts + 1)
    )
    with dialect.lock_limit():
        parts = [Part(*row) for row in dialect.select(query.tuples())]
        # Applications may create type names without limit, so only the largest groups are fetched.
        total = dialect.count(event.select(event.id).where(*conditions)) if len(parts) > most_parts else None
    shown = parts[:most_parts]
    return Breakdown(shown, 0 if total is None else max(0, total - sum(part.count for part in shown)))
