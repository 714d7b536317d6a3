"""The destinations of the deployment, as its workers have recorded them in the database.

Any worker may claim any event, but workers may have different destinations: during a deployment, or because one of them
was started without a module. So each worker records the names and patterns of its destinations before its first claim
(`recorder`), and an event goes to every recorded name that wants its type. If a worker lacks one of these destinations,
it leaves the delivery to a worker that has it.

A retired name gets no more events (`retirement`). It keeps its row, so that workers end open deliveries to it and don't
mistake it for a name that was never recorded.

The table has a version. Every change first locks the version, so that only one process changes the table at a time. If
the change affects which names want which event types, it also increases the version, in the same transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime

from outbox.destinations.controls import EVERYTHING, NO_CONTROLS, Controls, read_controls
from outbox.destinations.event_filter import is_wanted
from outbox.errors import SchemaError
from outbox.storage.dialect import Dialect
from outbox.storage.timestamp import DatabaseClock

# Workers refresh their records this often. A name that was not refreshed for three times as long counts as absent.
REFRESH_SECONDS = 60.0
ALIVE_SECONDS = 3 * REFRESH_SECONDS
# How long a process may wait for the lock on the version, and how long it may be idle while it holds the lock.
LOCK_SECONDS = 5.0


@dataclass(slots=True)
class RecordedDestination:
    """One name, and what the table holds for it."""

    name: str
    # By pattern: whether a worker that is running has it.
    patterns: dict[str, bool] = field(default_factory=dict)
    retired: bool = False
    retired_by: str | None = None
    replaced_by: str | None = None

    @property
    def alive(self) -> bool:
        """Return whether a running worker has the destination, with any pattern."""
        return any(self.patterns.values())

    def wants(self, event_type: str) -> bool:
        """Return whether one of its patterns matches the event type."""
        return is_wanted(event_type, self.patterns)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the table held at one version, and what operators had decided about the destinations."""

    version: int
    by_name: Mapping[str, RecordedDestination]
    controls: Controls = NO_CONTROLS
    # The database's clock, from when it was read. None: nothing is controlled.
    clock: DatabaseClock | None = None

    @property
    def is_everything_paused(self) -> bool:
        """Return whether all destinations are paused, and jobs and runs, so that there is nothing to claim."""
        pause = self.controls.pauses.get(EVERYTHING)
        return pause is not None and self.clock is not None and pause.is_active(self.clock.now())

    def paused_for(self, name: str, now: datetime) -> float:
        """Return for how many seconds this name has been paused until now, in all."""
        return self.controls.paused_for(name, now) if self.controls else 0.0

    def wanting(self, event_type: str) -> list[str]:
        """Return the names that want events of this type, without those that are retired."""
        return [name for name, each in self.by_name.items() if not each.retired and each.wants(event_type)]

    def is_running(self, name: str) -> bool:
        """Return whether a running worker had this name when the table was read (in a worker, a minute ago at most)."""
        found = self.by_name.get(name)
        return found is not None and found.alive

    def is_retired(self, name: str) -> bool:
        """Return whether this name is retired."""
        found = self.by_name.get(name)
        return found is not None and found.retired

    def successor_of(self, name: str) -> str:
        """Return the name that has replaced this name, directly or in several steps; the name itself if none has."""
        seen = set()
        while (found := self.by_name.get(name)) is not None and found.retired and found.replaced_by is not None:
            if found.replaced_by in seen:
                break  # two names that have replaced each other
            seen.add(name)
            name = found.replaced_by
        return name


class RecordedDestinations:
    """This process's copy of the table.

    Every claim returns the table's version; if that is not the copy's version, the table is read again.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self.latest = Snapshot(-1, {})  # no table has this version: the first claim reads the table

    def at(self, versions: Collection[int | None]) -> Snapshot:
        """Return the table as it was at the newest of these versions, or later. Read it only if the copy is older."""
        latest = self.latest
        return latest if all(version == latest.version for version in versions) else self.read()

    def read(self) -> Snapshot:
        """Read the table, even if the copy has its version, and return it."""
        with self._dialect.connection():
            # In this order: if an operator changes the controls in between, the version is old and they are read again.
            version, by_name = read_recorded(self._dialect)
            controls, now = read_controls(self._dialect)
            self.latest = snapshot = Snapshot(version, by_name, controls, DatabaseClock(now))
        return snapshot


def read_recorded(dialect: Dialect) -> tuple[int, dict[str, RecordedDestination]]:
    """Return the table's version and its content by name, read in one statement so that they belong together."""
    statement = dialect.statements.destinations
    rows = dialect.run(statement, (dialect.seconds(ALIVE_SECONDS),)).fetchall()
    if not rows:
        table = dialect.tables.control
        raise SchemaError(
            f"The row 'destinations' is missing from the table {table}, so it is not known which destinations "  # noqa: S608
            f"there are. Restore it: INSERT INTO {table} (name, version, updated_at) "
            "VALUES ('destinations', 1, CURRENT_TIMESTAMP)."
        )
    by_name: dict[str, RecordedDestination] = {}
    # Rows that are not retired come first. So if a retired name is in use again, with fewer patterns, its retired
    # patterns are ignored.
    for _, name, pattern, retired, retired_by, replaced_by, alive in sorted(rows, key=lambda row: bool(row[3])):
        if name is not None:
            new = RecordedDestination(name, {}, bool(retired), retired_by, replaced_by)
            each = by_name.setdefault(name, new)
            if each.retired == bool(retired):
                each.patterns[pattern] = bool(alive)
    return int(rows[0][0]), by_name


@contextmanager
def change_recorded(dialect: Dialect, lock_seconds: float = LOCK_SECONDS) -> Iterator[dict[str, RecordedDestination]]:
    """Open a transaction in which only this process can change the table; yield what the table holds at its start."""
    with dialect.connection(), dialect.atomic():
        if dialect.name == "postgres":
            # If a process freezes during the transaction, it must not keep the lock for long.
            for timeout in ("lock_timeout", "idle_in_transaction_session_timeout"):
                dialect.run("SELECT set_config(%s, %s, true)", (timeout, f"{lock_seconds:g}s"))
        dialect.run(dialect.statements.destinations_lock)
        yield read_recorded(dialect)[1]


def absent_names(by_name: Mapping[str, RecordedDestination], own: Iterable[str]) -> list[str]:
    """Return the names that are not retired and that neither a running worker nor the caller (`own`) has."""
    known = set(own)
    return sorted(name for name, each in by_name.items() if not each.retired and not each.alive and name not in known)
