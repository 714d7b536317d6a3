"""Record a worker's destinations in the database.

Any worker may claim any event, so each worker must know which destinations the other workers have. Each worker writes
the names and patterns of its own destinations to the table before its first claim, then every minute, and again when
more are registered. `recorded_destinations` reads the table; `retirement` marks names in it as retired.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping

import peewee

from outbox.destinations.protocol import Destination
from outbox.destinations.recorded_destinations import (
    ALIVE_SECONDS,
    LOCK_SECONDS,
    REFRESH_SECONDS,
    RecordedDestination,
    RecordedDestinations,
    absent_names,
    change_recorded,
)
from outbox.destinations.registry import Registry, names_replaced
from outbox.destinations.retirement import BY_DECLARATION, BY_SUCCESSOR, RETIRED_BY_SYSTEM, mark_retired
from outbox.errors import as_sentence
from outbox.storage.connection_errors import CONNECTION_ERRORS
from outbox.storage.dialect import Dialect
from outbox.storage.waiting_events import unpark_all
from outbox.telemetry.audit import Operator

logger = logging.getLogger(__name__)

# A pattern that no worker has had for this long is deleted if a running worker has its destination: the destination
# now wants fewer event types.
NARROW_SECONDS = 600.0
# A worker that ends cleanly dates the records of its names back by this much. If another worker has a name as well, it
# refreshes the record before the name would count as absent.
BACKDATE_SECONDS = ALIVE_SECONDS - REFRESH_SECONDS - 10.0


class Recorder:
    """Keeps the records of one worker's destinations current.

    The worker calls `keep_current` before every claim; `warn_once` logs a warning once for each text.
    """

    def __init__(
        self,
        dialect: Dialect,
        registry: Registry,
        recorded: RecordedDestinations,
        warn_once: Callable[[str], None],
        *,
        lock_seconds: float = LOCK_SECONDS,
    ) -> None:
        self._dialect = dialect
        self._registry = registry
        self._recorded = recorded
        self._warn_once = warn_once
        self._lock_seconds = lock_seconds
        # What the registry held when this worker last recorded it.
        self._last_recorded: Mapping[str, Destination] | None = None
        self._due_at = 0.0

    def keep_current(self) -> None:
        """Record the destinations of this worker if that is due.

        Raise a connection error if they can't be recorded and were not recorded before: the worker must not claim then.
        """
        destinations = self._registry.destinations
        is_recorded = self._last_recorded is destinations
        if is_recorded and time.monotonic() < self._due_at:
            return
        self._due_at = time.monotonic() + REFRESH_SECONDS  # so that other threads don't try at the same time
        try:
            absent = self.record(starting=self._last_recorded is None)
        except CONNECTION_ERRORS as error:
            if not is_recorded:
                raise
            logger.debug(
                "The destinations could not be recorded again; the next try is in %g s: %s",
                REFRESH_SECONDS,
                as_sentence(error),
            )
            return
        self._last_recorded = destinations
        # The version would not tell: it does not change when a name gets, or no longer has, a running worker.
        self._recorded.read()
        if absent and not is_recorded:
            logger.warning(
                "No running worker has the recorded destinations %s: events that they want wait for a worker that has "
                "them. Start such a worker. If one was renamed, register its successor with replaces=; if one was "
                "removed, run `outbox retire NAME`.",
                ", ".join(absent),
            )

    def stop(self) -> None:
        """Make this worker's names count as absent after a minute, unless another worker has them.

        A worker that ends cleanly calls this.
        """
        if self._last_recorded is None:
            return
        dialect, names = self._dialect, sorted(self._last_recorded)
        self._last_recorded = None
        try:
            with change_recorded(dialect, self._lock_seconds):
                for name in names:
                    dialect.run(dialect.statements.destination_leave, (dialect.seconds(BACKDATE_SECONDS), name))
        except peewee.PeeweeException as error:
            logger.debug("Could not record that this worker ends: %s", as_sentence(error))

    def record(self, *, starting: bool) -> list[str]:
        """Record the destinations of this process; return the recorded names that no running worker has.

        Also retire the names that the destinations replace, and the names that the application has declared as retired
        (`outbox.retire`). A retired name is no longer retired when a worker has it; if an operator retired it, only
        when such a worker is `starting`.
        """
        destinations = {name: tuple(each.events) for name, each in self._registry.destinations.items()}
        replaced = {old: new for old, new in self._replaced() if old not in destinations}
        declared = {old: None for old in self._registry.retired if old not in destinations}
        with change_recorded(self._dialect, self._lock_seconds) as by_name:
            changed = wants_other_types = False
            for name, patterns in sorted(destinations.items()):
                known = by_name.get(name)
                if known is not None and known.retired and not self._may_return(known, by_name, replaced, starting):
                    continue
                narrowed = self._record_one(name, patterns)
                wants_others = narrowed or _is_new(known, patterns)
                # If no running worker had the name, events may wait for it, so other workers should know at once.
                changed |= wants_others or known is None or not known.alive
                wants_other_types |= wants_others
            for old, new in sorted(replaced.items()):
                changed |= self._replace(by_name.get(old), old, new)
            for old in sorted(declared):
                if old in by_name and not by_name[old].retired:
                    mark_retired(self._dialect, old, None, Operator(BY_DECLARATION))
                    changed = True
            if changed:
                self._dialect.run(self._dialect.statements.destinations_changed)
            if wants_other_types:
                unpark_all(self._dialect)
        return absent_names(by_name, {*destinations, *replaced, *declared})

    def _record_one(self, name: str, patterns: tuple[str, ...]) -> bool:
        """Record one destination, and delete its patterns that no worker has any more; return whether any was."""
        dialect = self._dialect
        for pattern in sorted(patterns):
            dialect.run(dialect.statements.destination_record, (name, pattern))
        narrowed = dialect.run(dialect.statements.destination_narrow, (name, dialect.seconds(NARROW_SECONDS)))
        return bool(narrowed.rowcount)

    def _may_return(
        self,
        known: RecordedDestination,
        by_name: Mapping[str, RecordedDestination],
        replaced: Mapping[str, str],
        starting: bool,
    ) -> bool:
        """Return whether a name is no longer retired, because this worker has a destination of that name.

        If an operator retired the name, it stays retired until a worker that has it starts. If a successor replaced the
        name, it stays retired while a running worker has the successor, because otherwise both would deliver. The
        exception is a worker that also has a destination which replaces that successor.
        """
        if known.retired_by not in RETIRED_BY_SYSTEM:
            return starting
        successor = None if known.replaced_by is None else by_name.get(known.replaced_by)
        if successor is None or successor.retired or not successor.alive or successor.name in replaced:
            return True
        self._warn_once(
            f"The destination {known.name} was replaced by {successor.name}, which a running worker has: this worker "
            f"does not deliver to {known.name}."
        )
        return False

    def _replace(self, known: RecordedDestination | None, old: str, new: str) -> bool:
        """Record that `new` replaces `old`; return whether that was not recorded before."""
        statements = self._dialect.statements
        if known is None:
            # Events that are older than the table may have the old name in their progress.
            self._dialect.run(statements.destination_retire_unrecorded, (old, BY_SUCCESSOR, new))
            return True
        if not known.retired:
            mark_retired(self._dialect, old, new, Operator(BY_SUCCESSOR))
            return True
        if known.replaced_by is None:
            self._dialect.run(statements.destination_link, (new, old))
            return True
        return False

    def _replaced(self) -> Iterator[tuple[str, str]]:
        """Yield each name that a destination of this process replaces, with the name of that destination."""
        for name, destination in self._registry.destinations.items():
            for old in names_replaced(getattr(destination, "replaces", ())):
                yield old, name


def _is_new(known: RecordedDestination | None, patterns: tuple[str, ...]) -> bool:
    """Return whether the destination, or one of its patterns, was not recorded before."""
    return known is None or known.retired or not set(patterns) <= set(known.patterns)
