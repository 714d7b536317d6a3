"""Which destinations an event goes to: those that are registered here, and those that other workers have recorded.

Looked up once for each event type, as long as neither the registry nor the table of recorded destinations changes.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from outbox.destinations.protocol import Destination
from outbox.destinations.recorded_destinations import RecordedDestinations, Snapshot
from outbox.destinations.registry import Registry
from outbox.storage.dialect import Dialect

logger = logging.getLogger("outbox")

# Event types may be made up at run time: beyond so many, the lookups begin anew.
MOST_LOOKUPS = 10_000


class Audience(NamedTuple):
    """Who wants events of one type."""

    # Registered in this process, and their names.
    destinations: tuple[Destination, ...]
    names: tuple[str, ...]
    # Recorded in the database, and not registered in this process for this type.
    absent: tuple[str, ...]
    # The number of `names` in the table outbox_audience.
    id: int
    # What it was looked up by.
    recorded: Snapshot


class Lookups(NamedTuple):
    """The audiences so far, and what they were looked up by: they are replaced together."""

    destinations: object
    recorded: Snapshot
    by_type: dict[str, Audience]


class Audiences:
    """Looks up audiences, and gives each set of names its number in the database."""

    def __init__(self, dialect: Dialect, registry: Registry, recorded: RecordedDestinations) -> None:
        self._dialect = dialect
        self._registry = registry
        self._recorded = recorded
        self._lookups = Lookups(None, recorded.latest, {})
        self._told: set[str] = set()
        self._ids: dict[tuple[str, ...], int] = {}

    def look_up(self, versions: Collection[int | None], event_types: Iterable[str]) -> Mapping[str, Audience]:
        """Return the audience of each of these types, by the recorded destinations of these versions, or later.

        It reads the database when the copy is of another version, or when a set of names has no number yet.
        """
        lookups = self._current(self._recorded.at(versions))
        for event_type in event_types:
            if event_type not in lookups.by_type:
                lookups.by_type[event_type] = self._audience_of(event_type, lookups.recorded)
        return lookups.by_type

    def _current(self, snapshot: Snapshot) -> Lookups:
        """Return the lookups so far, or new ones if what they were made from has changed."""
        lookups, destinations = self._lookups, self._registry.destinations
        is_current = lookups.destinations is destinations and lookups.recorded is snapshot
        if not is_current or len(lookups.by_type) > MOST_LOOKUPS:
            self._lookups = lookups = Lookups(destinations, snapshot, {})
        return lookups

    def id_of(self, names: Iterable[str]) -> int:
        """Return the number of a set of names, which the table outbox_audience gets if it lacks it."""
        key = tuple(sorted(names))
        id = self._ids.get(key)
        if id is None:
            with self._dialect.connection():
                id = self._ids[key] = _intern(self._dialect, key)
        return id

    def _audience_of(self, event_type: str, snapshot: Snapshot) -> Audience:
        wanting = self._registry.wanting(event_type)
        here = tuple(each for each in wanting if not snapshot.is_retired(each.name))
        self._tell_of_retired({each.name for each in wanting} - {each.name for each in here})
        names = tuple(each.name for each in here)
        absent = tuple(name for name in snapshot.wanting(event_type) if name not in names)
        return Audience(here, names, absent, self.id_of(names), snapshot)

    def _tell_of_retired(self, names: Collection[str]) -> None:
        for name in sorted(set(names) - self._told):
            self._told.add(name)
            logger.warning(
                "The destination %s is registered in this process, and retired: it gets no events. A worker that "
                "starts with it brings it back, unless it was replaced.",
                name,
            )


def _intern(dialect: Dialect, names: tuple[str, ...]) -> int:
    """Looking first: an insert that meets a row draws a number from the sequence all the same."""
    text = json.dumps(names)
    digest = hashlib.sha256(text.encode()).hexdigest()
    row = dialect.run(dialect.statements.audience_find, (digest,)).fetchone()
    if row is None:
        dialect.run(dialect.statements.audience_add, (digest, text))
        row = dialect.run(dialect.statements.audience_find, (digest,)).fetchone()
    return int(row[0])


def names_of(dialect: Dialect, ids: Iterable[int]) -> Mapping[int, tuple[str, ...]]:
    """Return the names behind these numbers."""
    found: dict[int, tuple[str, ...]] = {}
    for id in set(ids):
        row = dialect.run(dialect.statements.audience_names, (id,)).fetchone()
        if row is not None:
            names = json.loads(row[0]) if isinstance(row[0], str) else row[0]
            found[id] = tuple(names)
    return found
