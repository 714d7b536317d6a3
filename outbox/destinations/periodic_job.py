"""Periodic jobs as they are declared, and periodic functions as destinations: `@outbox.periodic` makes them.

A scheduler stores a run at each time of the schedule. A run of an actor is a Dramatiq message. A run of a function is a
row of its own kind, which workers deliver by calling the function, with the retries and leases of a handler.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from outbox.destinations.handler import Handler
from outbox.destinations.outcome import Delivered, Outcome
from outbox.destinations.protocol import Destination, Lease
from outbox.events.event import Event
from outbox.storage import timestamp

ACTOR, FUNCTION = "actor", "function"

# What is done about the scheduled times that passed while no scheduler ran.
LATEST, ALL, NONE = CATCH_UP = ("latest", "all", "none")
# What is done at a scheduled time if the run before it has not ended.
ALLOW, SKIP = OVERLAP = ("allow", "skip")

# The names of the values in the payload of a run's row.
SCHEDULED_AT, BY_HAND = "scheduled_at", "by_hand"


class Schedule(Protocol):
    """When a job runs. `text` is as declared; two schedules are the same if text and timezone are."""

    @property
    def text(self) -> str: ...

    @property
    def words(self) -> str: ...

    @property
    def timezone(self) -> str: ...

    def next_after(self, moment: datetime) -> datetime: ...


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a periodic function: the argument with which the function is called."""

    # The name of the periodic job.
    name: str
    # It stays the same at every attempt, so that an inbox can skip a run that has had its effect already.
    id: UUID
    # The time of the schedule that the run is for, in UTC, however late it is; or when an operator asked for the run.
    scheduled_at: datetime
    # The number of this attempt, from 1, and how many there are at most.
    attempt: int = 1
    max_attempts: int = 1
    # Whether an operator asked for the run.
    by_hand: bool = False

    @classmethod
    def of(cls, event: Event) -> Run:
        """Return the run that a row stands for."""
        scheduled_at = timestamp.from_database(str(event.payload[SCHEDULED_AT]))
        by_hand = bool(event.payload.get(BY_HAND, False))
        return cls(event.event_type, event.id, scheduled_at, event.attempt, event.max_attempts, by_hand)


# Is called after each call of a periodic function, with the run, how many seconds it took, and its outcome.
Report = Callable[[Run, float, Outcome], None]


class PeriodicFunction(Handler):
    """Calls a periodic function for each of its runs. A run is delivered if the function returns without an error."""

    def __init__(self, function: Callable[[Run], Any], job: str, report: Report) -> None:
        @functools.wraps(function)
        def call(event: Event) -> Any:
            return function(Run.of(event))

        # The prefix keeps the name apart from those of destinations: progress and limits are kept by name.
        super().__init__(call, [job], name=f"periodic:{job}")
        self._report = report

    def _call(self, event: Event, lease: Lease, *, again: bool = False) -> Outcome:
        began_at = time.monotonic()
        outcome = super()._call(event, lease, again=again)
        if not again:
            self._report(Run.of(event), time.monotonic() - began_at, outcome)
        return outcome


@dataclass(frozen=True, slots=True)
class PeriodicJob:
    """A periodic job as the application has declared it. Either `actor` or `function` is set."""

    name: str
    schedule: Schedule
    catch_up: str
    overlap: str
    # A dramatiq.Actor.
    actor: Any = None
    function: PeriodicFunction | None = None
    max_attempts: int | None = None

    @property
    def kind(self) -> str:
        return ACTOR if self.function is None else FUNCTION


class PeriodicRouter:
    """Finds the function that a run's row is for: the row's event type is the job's name."""

    def __init__(self, jobs: Callable[[], Mapping[str, PeriodicJob]]) -> None:
        self._jobs = jobs

    def destination_for(self, event: Event) -> Destination | None:
        """Return the periodic function, or None if this process has not declared it."""
        job = self._jobs().get(event.event_type)
        return None if job is None else job.function


def error_of(outcome: Outcome) -> str | None:
    """Return the error of a call's outcome, or None if the call succeeded."""
    return None if isinstance(outcome, Delivered) else str(getattr(outcome, "error", outcome))
