"""What becomes of an entry: `Processed | Redeliver | Parked`."""

from __future__ import annotations

from dataclasses import dataclass

from outbox.events.event import Event


@dataclass(frozen=True, slots=True)
class Processed:
    """Every handler that wants it has dealt with it."""


@dataclass(frozen=True, slots=True)
class Redeliver:
    """It stays pending and comes again. Unless it `counts`, as if it had not been handed out this time.

    `lost`: the database is, and nothing can be done until it is back. Those that were to come next have not `begun`.
    """

    error: str
    counts: bool = False
    lost: bool = False
    begun: bool = True


@dataclass(frozen=True, slots=True)
class Parked:
    """Trying again can't help, or was tried often enough. `event` is None if the entry could not be read."""

    error: str
    event: Event | None = None


EntryOutcome = Processed | Redeliver | Parked
