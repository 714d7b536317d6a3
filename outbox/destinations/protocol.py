"""The interface of a destination (`outbox.Destination`), and the lease under which it delivers (`outbox.Lease`).

Handlers, webhooks, Redis streams and Dramatiq actors are destinations. An application may write its own.
"""

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
    """How long a destination may take to deliver its events, and with how many calls at the same time."""

    ends_at: float  # by time.monotonic()
    # How many calls may be under way at the same time: `limits.concurrency`, minus the calls of other workers.
    at_once: int = 1
    clock: DatabaseClock = field(default_factory=lambda: DatabaseClock(datetime.now(UTC)))
    # For a handler that found no free connection. Waits a few seconds for a free connection in the outbox's pool, and
    # returns whether there is one.
    wait_for_connection: Callable[[], bool] = lambda: False

    @classmethod
    def lasting(cls, seconds: float, *, at_once: int = 1) -> Self:
        """Return a lease that begins now and lasts this many seconds; for a test that calls a destination."""
        return cls(time.monotonic() + seconds, at_once)

    @property
    def seconds_left(self) -> float:
        """Return how long this worker may work on the events: it renews the lease up to OUTBOX_MAX_RUN_SECONDS."""
        return max(0.0, self.ends_at - time.monotonic())

    def now(self) -> datetime:
        """Return the time by the database's clock, which is the same for all workers."""
        return self.clock.now()


class Destination(Protocol):
    """A destination has a name that is stable across releases, the event types that it wants, and a method `deliver`.

    `events` are patterns: `"user.created"`, `"user.*"` or `"*"`. Workers record them, with the name, in the database.
    So a worker without this destination leaves its events to a worker that has it.

    `deliver` must take an event from the iterable only when it is ready to send it, because the event then counts as
    begun. When the batch has to end, the events that were not taken are given back, and lose no attempt. `deliver`
    yields an outcome for every event that it has taken, in any order.

    Optional attributes: `limits` (an `outbox.Limits`). `at_once`, if it can make several calls at the same time: how
    many at most; `lease.at_once` then says how many it may make now. `replaces`: the name, or the names, of the
    destinations that it replaces. `ordered`: False if it need not get the events of an ordering key in order.
    `on_failed`: "skip" if later events of a key don't wait behind one that has failed. `max_attempts`: how often an
    event is tried, whatever the event says. `backoff`: the waits between attempts (an `outbox.Backoff`).
    """

    @property
    def name(self) -> str: ...

    @property
    def events(self) -> Sequence[str]: ...

    def deliver(self, events: Iterable[Event], lease: Lease) -> Iterable[tuple[Event, Outcome]]: ...
