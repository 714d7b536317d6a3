"""Record a worker's destinations in the database, and retire those that are gone.

Every change takes the lock on the table's version first, so that changes come one after another, and adds one to the
version in the same transaction if the answer to "which names want this type?" has changed.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from outbox.database import CONNECTION_ERRORS
from outbox.destinations import Destination
from outbox.destinations.recorded import REFRESH_SECONDS, RecordedDestination, absent_names, read
from outbox.errors import RegistrationError
from outbox.identifier import uuid7
from outbox.registry import names_replaced

if TYPE_CHECKING:
    from outbox.core import Outbox
    from outbox.database import Dialect

logger = logging.getLogger("outbox")

# A pattern that no worker has had for so long is forgotten, if running workers have its name: they want less now.
NARROW_SECONDS = 600.0
LOCK_SECONDS = 5.0
# Who retires a name when no operator does.
BY_SUCCESSOR, BY_DECLARATION, BY_AGE = "(replaced)", "(declared)", "(absent)"
RETIRE = "retire"


class Recorder:
    """Keeps one worker's records current: before its first claim, then every minute, and when it registers more."""

    def __init__(self, box: Outbox) -> None:
        self._box = box
        self._recorded: Mapping[str, Destination] | None = None
        self._due_at = 0.0

    def keep_current(self) -> None:
        """Record what this worker has, if that is due. A worker that could not do it yet must not claim."""
        destinations = self._box.registry.destinations
        if self._recorded is destinations and time.monotonic() < self._due_at:
            return
        self._due_at = time.monotonic() + REFRESH_SECONDS  # other threads need not try meanwhile
        first = self._recorded is not destinations
        try:
            absent = record(self._box, starting=first)
        except CONNECTION_ERRORS as error:
            if first:
                self._due_at = 0.0
                raise
            logger.debug(
                "the destinations could not be recorded again, the next try is in %g s: %s",
                REFRESH_SECONDS,
                str(error).strip(),
            )
            return
        self._recorded = destinations
        self._box.recorded.read()  # which names running workers have, may have changed without a new version
        if first and absent:
            logger.warning(
                "No running worker has the recorded destinations %s: events that they want wait for a worker that has "
                "them. Start one, or retire what is gone for good: `outbox retire NAME`.",
                ", ".join(absent),
            )


def record(box: Outbox, *, starting: bool = True) -> list[str]:
    """Record the destinations of this process; return the recorded names that no running worker has.

    At the start of a worker this also brings back names that were retired, and retires those that the worker's
    destinations replace. Later it only refreshes: a name that was retired meanwhile stays retired.
    """
    destinations = {name: patterns_of(each) for name, each in box.registry.destinations.items()}
    with _changing(box.dialect) as by_name:
        changed = False
        retired: list[tuple[str, str | None, str]] = []
        for name, patterns in sorted(destinations.items()):
            there = by_name.get(name)
            if there is not None and there.retired and not (starting and _may_return(there, by_name)):
                continue
            for pattern in sorted(patterns):
                box.dialect.run(box.dialect.statements.destination_record, (name, pattern))
            # A name that no running worker had comes back: the others should know at once, since events wait for it.
            changed |= there is None or there.retired or not there.alive or not set(patterns) <= set(there.patterns)
            changed |= _narrow(box, name)
        if starting:
            retired += [(old, new, BY_SUCCESSOR) for old, new in _replaced(box) if _counts(old, by_name)]
            retired += [(old, None, BY_DECLARATION) for old in box.registry.retired if _counts(old, by_name)]
        for old, new, who in retired:
            _retire(box, old, new, who)
        if changed or retired:
            box.dialect.run(box.dialect.statements.destinations_changed)
    return absent_names(by_name, {*destinations, *(old for old, _, _ in retired)})


def retire(box: Outbox, name: str, *, who: str, force: bool = False) -> None:
    """Retire a name: open deliveries to it end without being made, and without failing.

    A name that a running worker has is refused unless `force` says otherwise: events would silently stop reaching it.
    """
    with _changing(box.dialect) as by_name:
        found = by_name.get(name)
        if found is None:
            raise RegistrationError(f"No destination called {name!r} is recorded. {_known(by_name)}")
        if found.retired:
            raise RegistrationError(f"The destination {name!r} is retired already.")
        if found.alive and not force:
            raise RegistrationError(
                f"A running worker has the destination {name!r}. Stop or redeploy the workers that have it first (they "
                "count as running for three minutes longer), or use --force: events then stop reaching it at once."
            )
        _retire(box, name, None, who)
        box.dialect.run(box.dialect.statements.destinations_changed)


def retire_absent(box: Outbox) -> list[str]:
    """Retire the names that no worker has had for OUTBOX_MAX_AGE_HOURS; return them.

    Only time during which workers ran counts: after a long standstill of all of them, each gets its full time again.
    """
    statements = box.dialect.statements
    most_seconds = 2 * box.settings.cleanup_minutes * 60
    with _changing(box.dialect):
        box.dialect.run(statements.destination_absent, (most_seconds,))
        limit = box.settings.max_age_hours * 3600
        names = [str(name) for (name,) in box.dialect.run(statements.destinations_expired, (limit,)).fetchall()]
        for name in names:
            _retire(box, name, None, BY_AGE)
        if names:
            box.dialect.run(statements.destinations_changed)
    return names


def patterns_of(destination: Destination) -> tuple[str, ...]:
    """Return the patterns of the event types that a destination wants."""
    return tuple(destination.events)


@contextmanager
def _changing(dialect: Dialect) -> Iterator[dict[str, RecordedDestination]]:
    """A transaction that alone changes the destinations; yields what the table holds at its start."""
    with dialect.connection(), dialect.all_or_nothing():
        if dialect.name == "postgres":
            # A process that is frozen in mid-transaction must not hold up the others.
            dialect.run("SELECT set_config('lock_timeout', %s, true)", (f"{LOCK_SECONDS:g}s",))
        dialect.run(dialect.statements.destinations_lock)
        yield read(dialect)[1]


def _may_return(there: RecordedDestination, by_name: Mapping[str, RecordedDestination]) -> bool:
    """A name comes back with a worker that has it, unless a running worker has its successor: both would deliver."""
    successor = None if there.replaced_by is None else by_name.get(there.replaced_by)
    if successor is None or successor.retired or not successor.alive:
        return True
    logger.warning(
        "The destination %s was replaced by %s, which a running worker has: this worker does not deliver to %s.",
        there.name,
        successor.name,
        there.name,
    )
    return False


def _narrow(box: Outbox, name: str) -> bool:
    """Forget patterns that no worker has any more; return whether there were any."""
    parameters = (name, box.dialect.seconds(NARROW_SECONDS))
    return bool(box.dialect.run(box.dialect.statements.destination_narrow, parameters).rowcount)


def _replaced(box: Outbox) -> Iterator[tuple[str, str]]:
    """The names that this process's destinations replace, each with its successor."""
    for name, destination in box.registry.destinations.items():
        for old in names_replaced(getattr(destination, "replaces", ())):
            yield old, name


def _counts(name: str, by_name: Mapping[str, RecordedDestination]) -> bool:
    return name in by_name and not by_name[name].retired


def _retire(box: Outbox, name: str, successor: str | None, who: str) -> None:
    box.dialect.run(box.dialect.statements.destination_retire, (successor, name))
    details = json.dumps({"destination": name, "replaced_by": successor})
    box.dialect.run(box.dialect.statements.audit_note, (box.dialect.id(uuid7()), who, RETIRE, details))
    instead = "" if successor is None else f"; {successor} takes its place"
    logger.warning(
        "The destination %s is retired %s%s: open deliveries to it end without being made.", name, who, instead
    )


def _known(by_name: Mapping[str, RecordedDestination]) -> str:
    names = sorted(name for name, each in by_name.items() if not each.retired)
    return f"Recorded are: {', '.join(names)}." if names else "No worker has recorded any destination yet."
