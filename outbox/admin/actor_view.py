"""Read what the page of one actor shows: its jobs over time, those that wait, and those that could not be enqueued."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from outbox.admin import queries
from outbox.admin.history import ACTOR, History, Range, Scope, read_history
from outbox.admin.queries import Page, ScanLimits
from outbox.operations.count import Count
from outbox.operations.filters import Filter
from outbox.storage.dialect import Dialect
from outbox.storage.models import FAILED, PENDING

# How many of the jobs that wait, and of those that have failed, are listed.
LISTED_JOBS = 10
# How many of the newest rows are searched for them, if an index finds too many.
WINDOW = 5_000


@dataclass(frozen=True, slots=True)
class ActorView:
    """One actor: its jobs that wait and that have failed, the newest first, with how many there are."""

    name: str
    now: datetime
    waiting: Page
    waiting_count: Count
    failed: Page
    failed_count: Count
    history: History


def read_actor(dialect: Dialect, name: str, over: Range, limits: ScanLimits) -> ActorView:
    """Return what is known about an actor."""
    window = replace(limits, window=min(limits.window, WINDOW))
    with dialect.connection():
        now = dialect.now()
        listed = [
            queries.page_and_count(dialect, Filter(actor=name, status=status), size=LISTED_JOBS, limits=window)
            for status in (PENDING, FAILED)
        ]
        history = read_history(dialect, now, over, Scope(ACTOR, name))
    (waiting, waiting_count), (failed, failed_count) = listed
    return ActorView(name, now, waiting, waiting_count, failed, failed_count, history)
