"""The destinations of the deployment, as its workers have recorded them in the database.

Any worker may claim any event, and workers differ: during a deployment, or because one of them was started without a
module. So each worker records the names and patterns of its destinations before its first claim, and an event goes to
every recorded name that wants its type. What one worker lacks it leaves to a worker that has it.

A name stops counting when it is retired: by an operator, by a declaration in code, by its successor (`replaces=`), or
because no worker has had it for OUTBOX_MAX_AGE_HOURS. A retired name keeps its row, so that an open delivery to it can
be ended, and told from one to a name that was never recorded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from outbox.destinations.pattern import Pattern
from outbox.errors import SchemaError
from outbox.storage.dialect import Dialect

# Workers refresh their records this often; a name that was not refreshed for three times as long counts as absent.
REFRESH_SECONDS = 60.0
ALIVE_SECONDS = 3 * REFRESH_SECONDS


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
        """Return whether a running worker has it, under any pattern."""
        return any(self.patterns.values())

    def wants(self, event_type: str) -> bool:
        return any(Pattern(text).matches(event_type) for text in self.patterns)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the table held at one version."""

    version: int
    by_name: Mapping[str, RecordedDestination]

    def wanting(self, event_type: str) -> list[str]:
        """Return the names that want events of this type, without those that are retired."""
        return [name for name, each in self.by_name.items() if not each.retired and each.wants(event_type)]

    def is_running(self, name: str) -> bool:
        """Return whether a running worker had this name when the table was read, a minute ago at most in a worker."""
        found = self.by_name.get(name)
        return found is not None and found.alive

    def is_retired(self, name: str) -> bool:
        found = self.by_name.get(name)
        return found is not None and found.retired

    def heir(self, name: str) -> str:
        """Return the name that has replaced this one, or its successor, and so on; itself if none has."""
        seen = set()
        while (found := self.by_name.get(name)) is not None and found.retired and found.replaced_by is not None:
            if found.replaced_by in seen:
                break  # two that have replaced each other
            seen.add(name)
            name = found.replaced_by
        return name


class RecordedDestinations:
    """A process's copy of the table. Claims return the table's version; another version means reading it anew."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self.latest = Snapshot(-1, {})  # as no table has it

    def at(self, versions: Collection[int | None]) -> Snapshot:
        """Return the table as it was at the newest of these versions, or later."""
        latest = self.latest
        return latest if all(version == latest.version for version in versions) else self.read()

    def read(self) -> Snapshot:
        """Read the table, whatever version the copy has, and return it."""
        with self._dialect.connection():
            self.latest = snapshot = Snapshot(*read(self._dialect))
        return snapshot


def read(dialect: Dialect) -> tuple[int, dict[str, RecordedDestination]]:
    """Return the table's version and its content, in one statement: both of the same moment."""
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
    # Those that count come first: a name that came back with fewer patterns counts with these alone.
    for _, name, pattern, retired, retired_by, replaced_by, alive in sorted(rows, key=lambda row: bool(row[3])):
        if name is not None:
            new = RecordedDestination(name, {}, bool(retired), retired_by, replaced_by)
            each = by_name.setdefault(name, new)
            if each.retired == bool(retired):
                each.patterns[pattern] = bool(alive)
    return int(rows[0][0]), by_name


def absent_names(by_name: Mapping[str, RecordedDestination], own: Iterable[str]) -> list[str]:
    """Return the names that count and that neither a running worker nor the caller has."""
    known = set(own)
    return sorted(name for name, each in by_name.items() if not each.retired and not each.alive and name not in known)
