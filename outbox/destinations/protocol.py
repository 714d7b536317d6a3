"""Where events go. A destination is given events and says, for each, what became of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol, Self

from outbox.destinations.outcome import Outcome
from outbox.events.event import Event
from outbox.storage.timestamp import DatabaseClock


@dataclass(frozen=True, slots=True)
class Lease:
    """What a destination may count on while it delivers."""

    ends_at: float  # by time.monotonic()
    # How many calls may be under way at once: `limits.concurrency`, or what others have left of it.
    at_once: int = 1
    clock: DatabaseClock = field(default_factory=lambda: DatabaseClock(datetime.now(UTC)))
    # Waits a few seconds for a connection of the outbox's pool, when a call found none; returns whether there is one.
    wait_for_connection: Callable[[], bool] = lambda: False

    @classmethod
    def lasting(cls, seconds: float, *, at_once: int = 1) -> Self:
        """One that begins now; for trying out a destination."""
        return cls(time.monotonic() + seconds, at_once)

    @property
    def seconds_left(self) -> float:
        """How long the events are this worker's: the lease is renewed meanwhile, up to OUTBOX_MAX_RUN_SECONDS."""
        return max(0.0, self.ends_at - time.monotonic())

    def now(self) -> datetime:
        """The time by the database's clock, which is the same for all workers."""
        return self.clock.now()


class Destination(Protocol):
    """Anything with a name that is stable across releases, the event types that it wants, and a way to deliver.

    `events` are patterns: `"user.created"`, `"user.*"` or `"*"`. Workers record them, with the name, in the database: a
    worker that lacks this destination leaves its events to one that has it.

    `deliver` takes events from the iterable as it gets to them: an event that was taken has begun, and one that was
    not taken by the time the batch has to end goes back untouched. It yields an outcome for every event it took, in
    any order.

    It may also have `limits` (an `outbox.Limits`), and `at_once` if it makes several calls at the same time: how many
    it could make at most. `lease.at_once` then says how many it may make now. And `replaces`: the name, or the names,
    of destinations whose place it takes.
    """

    @property
    def name(self) -> str: ...

    @property
    def events(self) -> Sequence[str]: ...

    def deliver(self, events: Iterable[Event], lease: Lease) -> Iterable[tuple[Event, Outcome]]: ...
