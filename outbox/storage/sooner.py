"""Make events due sooner that wait at a destination, because it is no longer paused or throttled, or can be reached.

Each call reads and changes a limited number of events, and the next call continues behind them. If the caller stops in
between, the other events are tried at the times that they have.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from outbox.storage import timestamp
from outbox.storage.dialect import Dialect
from outbox.storage.progress import PAUSED, parse

# How many events one call reads, and how many it changes.
MOST_READ = 20_000
MOST_CHANGED = 1_000


@dataclass(frozen=True, slots=True)
class MadeDue:
    """The result of one call. `position` is where the next call continues; None if there is nothing left to read."""

    changed: int
    position: datetime | None


def make_due_sooner(
    dialect: Dialect,
    destination: str | None,
    *,
    since: datetime = timestamp.EARLIEST,
    unchanged_since: datetime = timestamp.LATEST,
    after_seconds: float = 0.0,
    step_seconds: float = 0.0,
    most_read: int = MOST_READ,
    most_changed: int = MOST_CHANGED,
) -> MadeDue:
    """Make events due that wait at the destination, in the order of their due times, from `since` on.

    The first of them is due in `after_seconds`, each other one `step_seconds` after the one before it; none is due
    later than before. Without a destination: events that wait at any destination because it is paused. Events that
    were changed after `unchanged_since` are left out.
    """
    with dialect.connection():
        times = (timestamp.to_text(since), timestamp.to_text(unchanged_since))
        if dialect.name == "postgres":
            names = (destination,) * 4
            steps = (most_changed, float(after_seconds), float(step_seconds))
            parameters = (*times, most_read, *names, *steps)
            changed, *rest = dialect.run(dialect.statements.sooner, parameters).fetchone()
        else:
            limits = (most_read, most_changed)
            changed, *rest = _on_sqlite(dialect, destination, times, (after_seconds, step_seconds), limits)
    chosen, last_chosen, read, last_read = rest
    position = last_chosen if chosen >= most_changed else last_read if read >= most_read else None
    if position is None:
        return MadeDue(changed, None)
    position = timestamp.from_database(position)
    # What is left at the same due time as before is locked, or waits at other destinations: don't read it for ever.
    return MadeDue(changed, position if changed or position > since else None)


def _on_sqlite(
    dialect: Dialect,
    destination: str | None,
    times: tuple[str, str],
    steps: tuple[float, float],
    limits: tuple[int, int],
) -> tuple[Any, ...]:
    (after_seconds, step_seconds), (most_read, most_changed) = steps, limits
    with dialect.atomic():
        near = dialect.run(dialect.statements.near, (*times, most_read)).fetchall()
        chosen = [(id, due_at) for id, due_at, progress in near if _waits_there(progress, destination)][:most_changed]
        for number, (id, _) in enumerate(chosen):
            seconds = dialect.seconds(after_seconds + number * step_seconds)
            dialect.run(dialect.statements.sooner, (seconds, id))
    last_chosen = chosen[-1][1] if chosen else None
    last_read = near[-1][1] if near else None
    return len(chosen), len(chosen), last_chosen, len(near), last_read


def _waits_there(progress: str, destination: str | None) -> bool:
    """Return whether the event may be tried sooner at the destination (as the statement of PostgreSQL decides it)."""
    try:
        entries = parse(json.loads(progress))
    except (ValueError, TypeError, AttributeError):
        return False
    if destination is None:
        return any(entry.reason == PAUSED for entry in entries.values())
    return destination in entries and entries[destination].may_be_tried_sooner
