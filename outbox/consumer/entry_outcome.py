"""Define the outcomes of an entry: `Processed | Redeliver | Parked`.

`EntryProcessor.process` calls the handlers and returns one of them. `settle` writes it to the source.
"""

from __future__ import annotations

from dataclasses import dataclass

from outbox.events.event import Event


@dataclass(frozen=True, slots=True)
class Processed:
    """Every handler that wants the entry has processed it, so it is acknowledged."""


@dataclass(frozen=True, slots=True)
class Redeliver:
    """The entry is not acknowledged, and a consumer gets it again later.

    `is_counted`: whether this delivery counts towards `max_deliveries`. `database_lost`: whether the consumer must wait
    until the database is available again. `begun`: False if no handler was called, because the database was lost while
    an earlier entry was processed.
    """

    error: str
    is_counted: bool = False
    database_lost: bool = False
    begun: bool = True


@dataclass(frozen=True, slots=True)
class Parked:
    """The entry is moved to the dead-letter stream or queue: it has failed too often, or a retry can't help.

    `event` is None if the entry could not be read as an event.
    """

    error: str
    event: Event | None = None


EntryOutcome = Processed | Redeliver | Parked
