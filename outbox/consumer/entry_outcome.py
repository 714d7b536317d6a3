"""What becomes of an entry after its handlers were called: `Processed | Redeliver | Parked`.

`EntryProcessor.process` returns one of them, and `settle` writes it to Redis.
"""

from __future__ import annotations

from dataclasses import dataclass

from outbox.events.event import Event


@dataclass(frozen=True, slots=True)
class Processed:
    """Every handler that wants the entry has processed it: it is acknowledged."""


@dataclass(frozen=True, slots=True)
class Redeliver:
    """The entry stays pending, and a consumer of the group gets it again later.

    `counts`: this delivery counts towards `max_deliveries`. `database_lost`: the consumer must wait until the database
    is available again. `begun`: its handlers were called; False for the entries after one that lost the database.
    """

    error: str
    counts: bool = False
    database_lost: bool = False
    begun: bool = True


@dataclass(frozen=True, slots=True)
class Parked:
    """The entry is moved to the dead-letter stream: it has failed too often, or trying again can't help.

    `event` is None if the entry could not be read as an event.
    """

    error: str
    event: Event | None = None


EntryOutcome = Processed | Redeliver | Parked
