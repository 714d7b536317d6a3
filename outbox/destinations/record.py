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

import peewee

from outbox.destinations.protocol import Destination
from outbox.destinations.recorded import ALIVE_SECONDS, REFRESH_SECONDS, RecordedDestination, absent_names, read
from outbox.destinations.registry import names_replaced
from outbox.errors import RegistrationError
from outbox.storage.dialect import CONNECTION_ERRORS
from outbox.storage.ids import uuid7

if TYPE_CHECKING:
    from outbox.core import Outbox
    from outbox.storage.dialect import Dialect

logger = logging.getLogger("outbox")

# A pattern that no worker has had for so long is forgotten, if running workers have its name: they want less now.
NARROW_SECONDS = 600.0
LOCK_SECONDS = 5.0
# How many clean-ups at least have to find a name absent before it is retired.
LEAST_CHECKS = 10
# A worker that ends cleanly sets its names back by so much: the next refresh of another worker comes before they count
# as absent.
LEFT_SECONDS = ALIVE_SECONDS - REFRESH_SECONDS - 10.0
# Who retires a name when no operator does.
BY_SUCCESSOR, BY_DECLARATION, BY_AGE = "its successor", "a declaration", "OUTBOX_MAX_AGE_HOURS"
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
        is_recorded = self._recorded is destinations
        if is_recorded and time.monotonic() < self._due_at:
            return
        self._due_at = time.monotonic() + REFRESH_SECONDS  # other threads need not try meanwhile
        try:
            absent = record(self._box, starting=self._recorded is None)
        except CONNECTION_ERRORS as error:
            if not is_recorded:
                raise
            logger.debug(
                "the destinations could not be recorded again, the next try is in %g s: %s",
                REFRESH_SECONDS,
                str(error).strip(),
            )
            return
        self._recorded = destinations
        self._box.recorded.read()  # which names running workers have, may have changed without a new version
        if absent and not is_recorded:
            logger.warning(
                "No running worker has the recorded destinations %s: events that they want wait for a worker that has "
                "them. Start one, or retire what is gone for good: `outbox retire NAME`.",
                ", ".join(absent),
            )

    def leave(self) -> None:
        """Have this worker's names count as absent in a minute, unless another worker has them. For a clean end."""
        if self._recorded is None:
            return
        dialect, names = self._box.dialect, sorted(self._recorded)
        self._recorded = None
        try:
            with _changing(dialect):
                for name in names:
                    dialect.run(dialect.statements.destination_leave, (dialect.seconds(LEFT_SECONDS), name))
        except peewee.PeeweeException as error:
            logger.debug("could not record that this worker ends: %s", str(error).strip())


def record(box: Outbox, *, starting: bool = True) -> list[str]:
    """Record the destinations of this process; return the recorded names that no running worker has.

    This also retires what the process's destinations replace, and what the process declares to be gone. A name that was
    retired comes back with a worker that has it; one that an operator has retired only when a worker starts.
    """
    destinations = {name: patterns_of(each) for name, each in box.registry.destinations.items()}
    replaced = {old: new for old, new in _replaced(box) if old not in destinations}
    declared = {old: None for old in box.registry.retired if old not in destinations}
    with _changing(box.dialect) as by_name:
        changed = False
        for name, patterns in sorted(destinations.items()):
            there = by_name.get(name)
            if there is not None and there.retired and not _may_return(box, there, by_name, replaced, starting):
                continue
            for pattern in sorted(patterns):
                box.dialect.run(box.dialect.statements.destination_record, (name, pattern))
            # A name that no running worker had comes back: the others should know at once, since events wait for it.
            changed |= there is None or there.retired or not there.alive or not set(patterns) <= set(there.patterns)
            changed |= _narrow(box, name)
        for old, new in sorted(replaced.items()):
            changed |= _replace(box, by_name.get(old), old, new)
        for old in sorted(declared):
            if _counts(old, by_name):
                _retire(box, old, None, BY_DECLARATION)
                changed = True
        if changed:
            box.dialect.run(box.dialect.statements.destinations_changed)
    return absent_names(by_name, {*destinations, *replaced, *declared})


def retire(box: Outbox, name: str, *, who: str, force: bool = False) -> None:
    """Retire a name: open deliveries to it end without being made, and without failing.

    Unless `force` says otherwise this refuses a name that a running worker has, since events would stop reaching it,
    and one that was never recorded, which is most likely a typing error.
    """
    with _changing(box.dialect) as by_name:
        found = by_name.get(name)
        if found is None:
            if not force:
                raise RegistrationError(
                    f"No destination called {name!r} is recorded. {_known(by_name)} If events from before wait for it, "
                    "retire it with --force."
                )
            box.dialect.run(box.dialect.statements.destination_retire_unrecorded, (name, who, None))
        elif found.retired:
            raise RegistrationError(f"The destination {name!r} is retired already.")
        elif found.alive and not force:
            raise RegistrationError(
                f"A running worker has the destination {name!r}. Stop or redeploy the workers that have it first: they "
                "count as running for a minute after a clean stop, and for three after a crash. Or use --force: events "
                "then stop reaching it at once."
            )
        _retire(box, name, None, who)
        box.dialect.run(box.dialect.statements.destinations_changed)


def retire_absent(box: Outbox) -> list[str]:
    """Retire the names that no worker has had for OUTBOX_MAX_AGE_HOURS; return them.

    Only time during which workers ran counts: after a long standstill of all of them, each gets its full time again.
    """
    statements = box.dialect.statements
    limit = box.settings.max_age_hours * 3600
    # However rare clean-ups are: one of them alone must not retire what has yet to start.
    most_seconds = min(2 * box.settings.cleanup_minutes * 60, limit / LEAST_CHECKS)
    with _changing(box.dialect):
        box.dialect.run(statements.destination_absent, (most_seconds,))
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
            # A process that is frozen in mid-transaction must not hold up the others for long.
            for timeout in ("lock_timeout", "idle_in_transaction_session_timeout"):
                dialect.run("SELECT set_config(%s, %s, true)", (timeout, f"{LOCK_SECONDS:g}s"))
        dialect.run(dialect.statements.destinations_lock)
        yield read(dialect)[1]


def _may_return(
    box: Outbox,
    there: RecordedDestination,
    by_name: Mapping[str, RecordedDestination],
    replaced: Mapping[str, str],
    starting: bool,
) -> bool:
    """Return whether a retired name comes back with this worker, which has it.

    An operator's word holds until a worker starts. A successor keeps the name away while a running worker has it, since
    both would deliver; unless this worker has a destination that replaces that successor in turn.
    """
    if there.retired_by not in (BY_SUCCESSOR, BY_DECLARATION, BY_AGE):
        return starting
    successor = None if there.replaced_by is None else by_name.get(there.replaced_by)
    if successor is None or successor.retired or not successor.alive or successor.name in replaced:
        return True
    box.warn_once(
        f"The destination {there.name} was replaced by {successor.name}, which a running worker has: this worker does "
        f"not deliver to {there.name}."
    )
    return False


def _replace(box: Outbox, there: RecordedDestination | None, old: str, new: str) -> bool:
    """Have one name take the place of another; return whether that is new."""
    if there is None:
        # Events from before there was this table may have it in their progress.
        box.dialect.run(box.dialect.statements.destination_retire_unrecorded, (old, BY_SUCCESSOR, new))
        return True
    if not there.retired:
        _retire(box, old, new, BY_SUCCESSOR)
        return True
    if there.replaced_by is None:
        box.dialect.run(box.dialect.statements.destination_link, (new, old))
        return True
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
    box.dialect.run(box.dialect.statements.destination_retire, (who, successor, name))
    details = json.dumps({"destination": name, "replaced_by": successor})
    box.dialect.run(box.dialect.statements.audit_note, (box.dialect.id(uuid7()), who, RETIRE, details))
    if successor is None:
        logger.warning("The destination %s was retired by %s: open deliveries to it end without being made.", name, who)
    else:
        logger.warning("The destination %s was replaced by %s, which takes over its open deliveries.", name, successor)


def _known(by_name: Mapping[str, RecordedDestination]) -> str:
    names = sorted(name for name, each in by_name.items() if not each.retired)
    return f"Recorded are: {', '.join(names)}." if names else "No worker has recorded any destination yet."
