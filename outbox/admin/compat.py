"""Check whether new code understands what is in the table, before it is deployed: `outbox compat`.

The code of this process is the new code: its declared classes, upcasters, handlers and destinations. It is tried on the
unfinished events, the failed ones, and the newest ones of any kind, up to a limit for each. Nothing is written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from uuid import UUID

from outbox.admin.readable_row import readable_row
from outbox.core import Outbox
from outbox.destinations.handler import Handler
from outbox.destinations.recorded_destinations import read_recorded
from outbox.destinations.registry import names_replaced
from outbox.errors import NewerEvent, RegistrationError, UnreadableEvent
from outbox.events.event_types import VERSION_HEADER, event_types
from outbox.storage.models import EVENT, OutboxEvent
from outbox.storage.status import Conditions, is_failed, is_unfinished
from outbox.webhooks.redaction import hide_values, texts_in

# Rows are read in pages of this many, so that few payloads are in memory at once.
PAGE = 100
# A statement may take this long on PostgreSQL.
STATEMENT_SECONDS = 10

# The kinds of problems.
DECLARATION, MISSING, UNWANTED, UNREADABLE, NEWER, ENCRYPTED = (
    "declaration",
    "missing_destination",
    "unwanted",
    "unreadable",
    "newer_version",
    "encrypted",
)


@dataclass(slots=True)
class Problem:
    """One problem of the new code, and in how many of the events that were read it occurs."""

    kind: str
    what: str
    events: int = 0
    # One of these events.
    example: UUID | None = None


@dataclass(slots=True)
class Compatibility:
    """What was found. `looked_at` has the number of events that were read, and `limited` says where there are more."""

    looked_at: dict[str, int] = field(default_factory=dict)
    limited: list[str] = field(default_factory=list)
    problems: dict[tuple[str, str], Problem] = field(default_factory=dict)

    def add(self, kind: str, what: str, event: OutboxEvent | None = None) -> None:
        problem = self.problems.setdefault((kind, what), Problem(kind, what))
        if event is not None:
            problem.events += 1
            problem.example = problem.example or event.id


def check_compatibility(box: Outbox, *, limit: int, elsewhere: Iterable[str] = ()) -> Compatibility:
    """Try the code of this process on what is in the table.

    `elsewhere` are the names of destinations that other workers will go on to have.
    """
    found = Compatibility()
    _check_declarations(box, found)
    with box.dialect.connection():
        _check_destinations(box, found, set(elsewhere))
        seen: set[UUID] = set()
        event = OutboxEvent
        groups: list[tuple[str, Conditions, object]] = [
            ("unfinished", is_unfinished(), event.next_attempt_at),
            ("failed", is_failed(), event.id.desc()),
            ("recent", [], event.id.desc()),
        ]
        for name, conditions, order in groups:
            ids = _ids(box, conditions, order, limit)
            new = [id for id in ids if id not in seen]
            found.looked_at[name] = len(new)
            if len(ids) == limit:
                found.limited.append(name)
            seen.update(new)
            for row in _rows(box, new):
                _check_event(box, found, row, has_ended=name == "recent")
    return found


def _check_declarations(box: Outbox, found: Compatibility) -> None:
    for name in {each.name for each in event_types.declared}:
        try:
            event_types.check(name)
        except RegistrationError as error:
            found.add(DECLARATION, str(error))
    for destination in box.registry.destinations.values():
        if isinstance(destination, Handler):
            try:
                destination.check_classes()
            except RegistrationError as error:
                found.add(DECLARATION, str(error))


def _check_destinations(box: Outbox, found: Compatibility, elsewhere: set[str]) -> None:
    """Find recorded destinations that the code neither has, nor replaces, nor retires: events would wait for them."""
    own = box.registry.destinations
    replaced = {name for each in own.values() for name in names_replaced(getattr(each, "replaces", ()))}
    known = own.keys() | replaced | elsewhere | set(box.registry.retired)
    for name, recorded in sorted(read_recorded(box.dialect)[1].items()):
        if not recorded.retired and name not in known:
            found.add(
                MISSING,
                f"Workers have recorded the destination {name!r}, and this code does not have it: events "
                f"({', '.join(recorded.patterns)}) would wait for it. If it was renamed, pass replaces={name!r} to its "
                f"successor; if it was removed, declare outbox.retire({name!r}); if other workers have it, pass "
                f"--elsewhere {name}.",
            )


def _ids(box: Outbox, conditions: Conditions, order: object, limit: int) -> list[UUID]:
    """Return the ids of the events, at most `limit`, and let no statement write or take long."""
    event = OutboxEvent
    query = event.select(event.id).where(event.kind == EVENT, *conditions).order_by(order).limit(limit)
    return [row.id for row in _read(box, query)]


def _rows(box: Outbox, ids: list[UUID]) -> Iterator[OutboxEvent]:
    event = OutboxEvent
    for start in range(0, len(ids), PAGE):
        columns = event.id, event.event_type, event.payload, event.headers
        yield from _read(box, event.select(*columns).where(event.id.in_(ids[start : start + PAGE])))


def _read(box: Outbox, query: object) -> list[OutboxEvent]:
    dialect = box.dialect
    if dialect.name != "postgres":
        return dialect.select(query)
    with box.database.atomic():
        dialect.run("SET TRANSACTION READ ONLY")
        dialect.run("SELECT set_config('statement_timeout', %s, true)", (f"{STATEMENT_SECONDS}s",))
        return dialect.select(query)


def _check_event(box: Outbox, found: Compatibility, row: OutboxEvent, *, has_ended: bool) -> None:
    name = row.event_type
    if not has_ended and not box.registry.wanting(name) and not box.registry.ignores(name):
        found.add(
            UNWANTED,
            f"No destination of this code wants the type {name!r}, and events of it are not delivered yet. Name all "
            f"modules with handlers; if they need none, declare outbox.ignore({name!r}).",
            row,
        )
    if event_types.latest(name) is None:
        return
    event, problem = readable_row(row, box.cipher)
    if problem is not None:
        found.add(
            ENCRYPTED, f"Events of the type {name!r} can't be decrypted here, so they were not tried: {problem}", row
        )
        return
    try:
        event_types.read(name, json.dumps(event.payload), event.headers)
    except NewerEvent as error:
        found.add(NEWER, f"{error}.", row)
    except UnreadableEvent as error:
        version = event.headers.get(VERSION_HEADER, 1)
        # An upcaster or a class may have quoted the payload, and this is printed where code is tested.
        reason = hide_values(str(error), texts_in([event.payload, event.headers]))
        found.add(UNREADABLE, f"Events of the type {name!r} with version {version!r} can't be read: {reason}.", row)
    except RegistrationError:
        pass  # reported as a declaration
