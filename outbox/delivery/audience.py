"""Look up an event type's audience: the destinations that want its events.

An audience consists of the destinations that are registered in this process, and those that other workers have recorded
in the database. Audiences are looked up once for each event type, and again after the registry or the recorded
destinations have changed. The table `outbox_audience` gives each set of names an id, which the row of a delivered event
stores: so the row says which destinations have the event.
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

logger = logging.getLogger(__name__)

# Applications may make up event types at run time, so the cache is emptied when it has more types than this.
MAX_CACHED_TYPES = 10_000


class Audience(NamedTuple):
    """The destinations that want events of one type."""

    # The destinations that are registered in this process, and their names.
    destinations: tuple[Destination, ...]
    names: tuple[str, ...]
    # The names that other workers have recorded, and that are not registered in this process for this type.
    absent: tuple[str, ...]
    # The id of `names` in the table outbox_audience.
    id: int
    # The version of the recorded destinations that the audience was looked up in.
    recorded: Snapshot


class Lookups(NamedTuple):
    """The cached audiences, and the registered and recorded destinations that they were looked up in."""

    destinations: object
    recorded: Snapshot
    by_type: dict[str, Audience]


class Audiences:
    """Looks up audiences, and the id that each set of names has in the database."""

    def __init__(self, dialect: Dialect, registry: Registry, recorded: RecordedDestinations) -> None:
        self._dialect = dialect
        self._registry = registry
        self._recorded = recorded
        self._lookups = Lookups(None, recorded.latest, {})
        self._warned_of: set[str] = set()
        self._ids: dict[tuple[str, ...], int] = {}

    def look_up(self, versions: Collection[int | None], event_types: Iterable[str]) -> Mapping[str, Audience]:
        """Return the audience of each of these types, from the recorded destinations of these versions or later.

        It reads the database if this process's copy of the recorded destinations is of another version, or if the id
        of a set of names is not known yet.
        """
        lookups = self._current(self._recorded.at(versions))
        for event_type in event_types:
            if event_type not in lookups.by_type:
                lookups.by_type[event_type] = self._audience_of(event_type, lookups.recorded)
        return lookups.by_type

    @property
    def recorded(self) -> Snapshot:
        """Return the recorded destinations that the last audiences were looked up in."""
        return self._recorded.latest

    def read_again(self) -> Snapshot:
        """Read the recorded destinations and the controls, even if no claim has said that they have changed."""
        return self._recorded.read()

    def is_everything_paused(self) -> bool:
        """Return whether an operator has paused everything. Then there is nothing to claim, and no event changes.

        While everything is paused, no claim says that this has changed: so the controls are read each time.
        """
        return self._recorded.latest.is_everything_paused and self.read_again().is_everything_paused

    def _current(self, snapshot: Snapshot) -> Lookups:
        """Return the cache, or an empty one if the registry or the recorded destinations have changed."""
        lookups, destinations = self._lookups, self._registry.destinations
        is_current = lookups.destinations is destinations and lookups.recorded is snapshot
        if not is_current or len(lookups.by_type) > MAX_CACHED_TYPES:
            self._lookups = lookups = Lookups(destinations, snapshot, {})
        return lookups

    def id_of(self, names: Iterable[str]) -> int:
        """Return the id of a set of names; if it has none yet, insert the set into the table outbox_audience."""
        key = tuple(sorted(names))
        id = self._ids.get(key)
        if id is None:
            with self._dialect.connection():
                id = self._ids[key] = _intern(self._dialect, key)
        return id

    def _audience_of(self, event_type: str, snapshot: Snapshot) -> Audience:
        wanting = self._registry.wanting(event_type)
        here = tuple(each for each in wanting if not snapshot.is_retired(each.name))
        self._warn_of_retired({each.name for each in wanting} - {each.name for each in here})
        names = tuple(each.name for each in here)
        absent = tuple(name for name in snapshot.wanting(event_type) if name not in names)
        return Audience(here, names, absent, self.id_of(names), snapshot)

    def _warn_of_retired(self, names: Collection[str]) -> None:
        for name in sorted(set(names) - self._warned_of):
            self._warned_of.add(name)
            logger.warning(
                "The destination %s is registered in this process, but it is retired, so it gets no events. It becomes "
                "active again when a worker that has it starts, unless another destination has replaced it.",
                name,
            )


def _intern(dialect: Dialect, names: tuple[str, ...]) -> int:
    """Return the id of a set of names; insert the set if it is new.

    SELECT runs first, because an INSERT uses up a number of the sequence even if the row exists already.
    """
    text = json.dumps(names)
    digest = hashlib.sha256(text.encode()).hexdigest()
    row = dialect.run(dialect.statements.audience_find, (digest,)).fetchone()
    if row is None:
        dialect.run(dialect.statements.audience_add, (digest, text))
        row = dialect.run(dialect.statements.audience_find, (digest,)).fetchone()
    return int(row[0])


def names_of(dialect: Dialect, ids: Iterable[int]) -> Mapping[int, tuple[str, ...]]:
    """Return the names of the audiences with these ids; ids that don't exist are left out."""
    names_by_id: dict[int, tuple[str, ...]] = {}
    for id in set(ids):
        row = dialect.run(dialect.statements.audience_names, (id,)).fetchone()
        if row is not None:
            names = json.loads(row[0]) if isinstance(row[0], str) else row[0]
            names_by_id[id] = tuple(names)
    return names_by_id
