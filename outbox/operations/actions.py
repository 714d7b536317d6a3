"""Changes that an operator makes to events: retry, fail, delete, replay.

Each works on the events that match a filter and are in the state that it is for, in batches of a transaction each: it
can be interrupted and run again, and an event that has moved on meanwhile is left alone. What was done is written down
in the same transactions.
"""

from __future__ import annotations

import functools
import operator
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

import peewee

from outbox.admin.queries import COUNT_CAP, Count
from outbox.delivery.audience import names_of
from outbox.destinations.event_filter import Pattern
from outbox.destinations.recorded_destinations import read_recorded
from outbox.errors import RegistrationError
from outbox.operations import audit
from outbox.operations.filters import Condition, Filter
from outbox.storage import progress
from outbox.storage.ids import as_uuid
from outbox.storage.models import OutboxEvent
from outbox.text import clean_error

if TYPE_CHECKING:
    from outbox.core import Outbox

BATCH = 500

Rows = Sequence[OutboxEvent]


@dataclass(frozen=True, slots=True)
class Action:
    """What is done, to events in which state, and whether somebody should look at the table afterwards."""

    name: str
    state: Callable[[], list[Condition]]
    run: Callable[[Outbox, Rows], int]
    notifies: bool = False


def apply(
    box: Outbox,
    action: Action,
    which: Filter,
    *,
    who: str | None = None,
    limit: int | None = None,
    per_second: float | None = None,
) -> Generator[int]:
    """Do it to all that match now, oldest first; yields after each batch how many that were so far.

    `who` is written down, with the filter and the number; None for what the application does itself.
    """
    done = 0
    with box.dialect.connection(), audit.record(box, who, action.name, which) as entry:
        last = _newest(box)
        after = UUID(int=0)
        while last is not None and (limit is None or done < limit):
            size = _size(limit, done, per_second)
            began_at = time.monotonic()
            with box.dialect.atomic():
                rows = _choose(box, [*which.conditions(box.database), *action.state()], after, last, size)
                hit = action.run(box, rows) if rows else 0
                entry.add(hit)
                if action.notifies and hit:
                    box.notifier.notify_after_commit(box.dialect)
            done += hit
            yield done
            if len(rows) < size:
                break
            after = rows[-1].id
            if per_second is not None:
                time.sleep(max(0.0, hit / per_second - (time.monotonic() - began_at)))


def total(box: Outbox, action: Action, which: Filter) -> int:
    """How many it would be, counted to the last: it may take a while."""
    query = OutboxEvent.select(OutboxEvent.id).where(*which.conditions(box.database), *action.state())
    with box.dialect.connection():
        return box.dialect.count(query)


def count(box: Outbox, action: Action, which: Filter, cap: int = COUNT_CAP) -> Count:
    """The same up to a cap, for those who can't wait."""
    query = OutboxEvent.select(OutboxEvent.id).where(*which.conditions(box.database), *action.state())
    with box.dialect.connection():
        number = box.dialect.count(query.limit(cap + 1))
    return Count(min(number, cap), at_least=number > cap)


def retry_failed_events(
    box: Outbox,
    *,
    ids: Iterable[UUID | str] | None = None,
    event_type: str | None = None,
    aggregate_type: str | None = None,
    aggregate_id: str | None = None,
    tenant_id: str | None = None,
    limit: int | None = None,
) -> int:
    """Put failed events back, due now, their attempts counted from 0; answers how many.

    Destinations that have the event already don't get it again.
    """
    which = Filter(
        ids=None if ids is None else tuple(UUID(str(id)) for id in ids),
        event_type=event_type,
        aggregate_type=aggregate_type,
        aggregate_id=aggregate_id,
        tenant_id=tenant_id,
    )
    return max(apply(box, RETRY, which, limit=limit), default=0)


# What is done to a batch


def _retry(box: Outbox, rows: Rows) -> int:
    put_back = box.dialect.statements.put_back
    return sum(
        int(box.dialect.run(put_back, (progress.started_again(row.progress), box.dialect.id(row.id))).rowcount)
        for row in rows
    )


def _delete(box: Outbox, rows: Rows) -> int:
    return _run(box, box.dialect.statements.delete_by_hand, rows)


def failing(reason: str) -> Action:
    """Give up on events that are waiting; one that is being delivered right now is left alone."""
    text = clean_error(f"given up by hand: {reason}" if reason else "given up by hand")
    return Action(
        "fail", _is_waiting, lambda box, rows: _run(box, box.dialect.statements.fail_by_hand, rows, before=(text,))
    )


def replaying(box: Outbox, destination: str | None = None) -> Action:
    """Deliver again what was delivered: to all destinations, or to one and only the events that it wants."""
    if destination is None:
        return Action("replay", _is_delivered, _replay, notifies=True)
    wanted = _wanted_by(box, destination)
    return Action(
        "replay",
        lambda: [*_is_delivered(), wanted],
        lambda box, rows: _replay_to(box, rows, destination),
        notifies=True,
    )


def _replay(box: Outbox, rows: Rows) -> int:
    return _run(box, box.dialect.statements.replay, rows, before=(None,))


def _replay_to(box: Outbox, rows: Rows, destination: str) -> int:
    """The others keep having it: those that had it by name, and whichever is registered by the time."""
    audiences = names_of(box.dialect, [row.audience for row in rows if row.audience is not None])
    groups: dict[int | None, list[OutboxEvent]] = {}
    for row in rows:
        groups.setdefault(row.audience, []).append(row)
    hit = 0
    for number, group in groups.items():
        had_it = audiences.get(number, ()) if number is not None else ()
        text = progress.replayed_to(destination, had_it)
        hit += _run(box, box.dialect.statements.replay, group, before=(text,))
    return hit


def _wanted_by(box: Outbox, destination: str) -> Condition:
    """The events that a destination wants: one that a worker has recorded, or that is registered here."""
    with box.dialect.connection():
        recorded = read_recorded(box.dialect)[1]
    known = {name: list(each.patterns) for name, each in recorded.items() if not each.retired}
    known |= {name: list(each.events) for name, each in box.registry.destinations.items()}
    if destination not in known:
        names = f"Known are: {', '.join(sorted(known))}." if known else "No worker has recorded any yet."
        raise RegistrationError(f"There is no destination called {destination!r}. {names}")
    conditions = [_matching(Pattern(text)) for text in known[destination]]
    return functools.reduce(operator.or_, conditions)


def _matching(pattern: Pattern) -> Condition:
    column = OutboxEvent.event_type
    if pattern.prefix is None:
        return column == pattern.text
    return peewee.fn.substr(column, 1, len(pattern.prefix)) == pattern.prefix


def _is_delivered() -> list[Condition]:
    return [OutboxEvent.delivered_at.is_null(False)]


def _is_failed() -> list[Condition]:
    return [OutboxEvent.next_attempt_at.is_null(), OutboxEvent.delivered_at.is_null()]


def _is_waiting() -> list[Condition]:
    return [OutboxEvent.next_attempt_at.is_null(False)]


def _has_ended() -> list[Condition]:
    return [OutboxEvent.next_attempt_at.is_null()]


RETRY = Action("retry", _is_failed, _retry, notifies=True)
DELETE = Action("delete", _has_ended, _delete)


# How a batch is chosen


def _run(box: Outbox, statement: str, rows: Rows, *, before: tuple[object, ...] = ()) -> int:
    return int(box.dialect.run(statement, (*before, box.dialect.ids([row.id for row in rows]))).rowcount)


def _choose(box: Outbox, conditions: list[Condition], after: UUID, last: UUID, size: int) -> list[OutboxEvent]:
    event = OutboxEvent
    query = (
        event.select(event.id, event.progress, event.audience)
        .where(event.id > after, event.id <= last, *conditions)
        .order_by(event.id)
        .limit(size)
    )
    if isinstance(box.database, peewee.PostgresqlDatabase):
        query = query.for_update(skip_locked=True)  # who else has them is doing something with them
    return box.dialect.select(query)


def _newest(box: Outbox) -> UUID | None:
    """What is emitted from now on is not meant."""
    query = OutboxEvent.select(OutboxEvent.id).order_by(OutboxEvent.id.desc()).limit(1)
    found = box.dialect.select(query.tuples())
    return as_uuid(found[0][0]) if found else None


def _size(limit: int | None, done: int, per_second: float | None) -> int:
    size = BATCH if limit is None else min(BATCH, limit - done)
    return size if per_second is None else max(1, min(size, int(per_second)))
