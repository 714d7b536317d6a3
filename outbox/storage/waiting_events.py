"""Read which events hold back later events of their ordering key; read and write which events wait (`sql/ordering.py`).

A *pair* is an ordering key and the name of a destination: order holds within a pair.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from outbox.storage import timestamp
from outbox.storage.array_literal import array_of_numbers, array_of_texts
from outbox.storage.dialect import Dialect, Row
from outbox.storage.ids import as_uuid
from outbox.storage.progress import ProgressEntry, parse
from outbox.storage.timestamp import from_database

Pair = tuple[str, str]

NO_LEASE = UUID(int=0)
# How many events of a key are read at first, and how many with each further query. Mostly one of the first ones holds
# back the others.
HOLDERS_READ = 10
MORE_HOLDERS_READ = 200


class Holder(NamedTuple):
    """An event that may hold back later events of its key: unfinished or failed, and not parked."""

    seq: int
    event_type: str
    # None if no destination was called yet.
    progress: Mapping[str, ProgressEntry] | None
    has_failed: bool
    # How long ago a worker has claimed it; 0 if it is due, and None if it is neither claimed nor due.
    claimed_seconds_ago: float | None = None


class EarlierEvents(NamedTuple):
    """The events that may hold back the later events of one key."""

    # The earliest first. There may be more if as many were returned as were asked for.
    holders: list[Holder]
    # By destination, the number of the first event that waits there.
    first_waiting: dict[str, int]


class FirstWaiting(NamedTuple):
    """The first event that waits in a pair: its number, and since when it waits."""

    key: str
    destination: str
    seq: int
    since: datetime


def read_earlier(
    dialect: Dialect,
    below: Mapping[str, int],
    destinations: Collection[str],
    lease_id: UUID = NO_LEASE,
    *,
    after: int = -1,
    most: int = HOLDERS_READ,
) -> dict[str, EarlierEvents]:
    """Return, for each key, the events with numbers above `after` and below the key's that may hold back others.

    Events under the lease `lease_id` are left out. Waiting events are looked up at `destinations` only. At most `most`
    events that hold back others are returned for each key.
    """
    found = {key: EarlierEvents([], {}) for key in below}
    rows = _earlier_rows(dialect, below, destinations, (after, dialect.id(lease_id), most))
    for key, seq, event_type, progress, has_failed, claimed_ago, destination in rows:
        if destination is not None:
            found[key].first_waiting[destination] = seq
        else:
            found[key].holders.append(Holder(seq, event_type, _entries(progress), bool(has_failed), claimed_ago))
    return found


def _entries(progress: str | None) -> Mapping[str, ProgressEntry] | None:
    """Return the entries of the column `progress`; None if it has none or, changed by hand, can't be read."""
    try:
        return None if progress is None else parse(json.loads(progress))
    except (ValueError, TypeError, AttributeError):
        return None


def _earlier_rows(
    dialect: Dialect, below: Mapping[str, int], destinations: Collection[str], limits: tuple[int, object, int]
) -> list[Row]:
    """`limits`: the number that the events are above, the lease of those that are left out, and how many to return."""
    after, lease, most = limits
    statement = dialect.statements.earlier
    rows: list[Row] = []
    if dialect.name == "postgres":
        keys, numbers = array_of_texts(list(below)), array_of_numbers(list(below.values()))
        names = array_of_texts(list(destinations))
        rows += dialect.run(statement, (keys, numbers, after, lease, most, names)).fetchall()
        return rows
    names = json.dumps(list(destinations))
    for key, number in below.items():
        rows += dialect.run(statement, (key, after, number, lease, most, key, key, names)).fetchall()
    return rows


def add_waiting(dialect: Dialect, waits: Iterable[tuple[str, str]]) -> None:
    """Record at which destinations parked events wait: pairs of a row's id and a destination's name."""
    items = list(waits)
    if dialect.name == "postgres":
        ids = dialect.row_ids([id for id, _ in items])
        dialect.run(dialect.statements.wait, (ids, array_of_texts([name for _, name in items])))
    else:
        dialect.run(dialect.statements.wait, (json.dumps(items),))


def recorded_waits(dialect: Dialect, items: Sequence[tuple[str, str, int, str]]) -> set[tuple[UUID, str]]:
    """Return which of these events wait at which destination, as pairs of the event's id and the destination's name.

    An item is an ordering key, a destination's name, and the number and the row's id of an event.
    """
    if dialect.name == "postgres":
        keys, names, numbers, ids = zip(*items, strict=True)
        arrays = (array_of_texts(keys), array_of_texts(names), array_of_numbers(numbers), dialect.row_ids(ids))
        rows = dialect.run(dialect.statements.recorded_waits, arrays).fetchall()
    else:
        rows = dialect.run(dialect.statements.recorded_waits, (json.dumps(items),)).fetchall()
    return {(as_uuid(id), name) for id, name in rows}


def any_waits_since(dialect: Dialect, moment: datetime) -> bool:
    """Return whether any event that waits has been parked at this time or later."""
    return bool(dialect.run(dialect.statements.waits_since, (timestamp.to_text(moment),)).fetchone()[0])


def first_waiting(dialect: Dialect, pairs: Collection[Pair]) -> tuple[dict[Pair, int], int | None]:
    """Return the number of the first event that waits in each pair; pairs in which none waits are left out.

    Also return the version of the recorded destinations.
    """
    rows = dialect.run(dialect.statements.first_waiting, _parameters(dialect, pairs)).fetchall()
    return {(key, name): seq for key, name, seq, _ in rows if seq is not None}, rows[0][3] if rows else None


def _parameters(dialect: Dialect, pairs: Collection[Pair]) -> tuple[str, ...]:
    """Return the parameters of `{pairs}`."""
    if dialect.name == "postgres":
        keys, names = zip(*pairs, strict=True)
        return array_of_texts(keys), array_of_texts(names)
    return (json.dumps(list(pairs)),)


def waiting_pairs(dialect: Dialect, after: Pair, limit: int) -> list[Pair]:
    """Return pairs in which events wait, in order, beginning after the given one."""
    return [(key, name) for key, name in dialect.run(dialect.statements.waiting_pairs, (*after, limit)).fetchall()]


def blocked_pairs(dialect: Dialect, after: Pair, limit: int) -> list[FirstWaiting]:
    """Return pairs in which events wait, in order, beginning after the given one, with the first event of each."""
    rows = dialect.run(dialect.statements.blocked_pairs, (*after, limit)).fetchall()
    return [FirstWaiting(key, name, seq, from_database(since)) for key, name, seq, since in rows]


def count_waiting(dialect: Dialect, pair: Pair, limit: int) -> int:
    """Return how many events wait in a pair; counting stops at the limit."""
    return int(dialect.run(dialect.statements.count_waiting, (*pair, limit)).fetchone()[0])


def count_parked(dialect: Dialect, limit: int) -> int:
    """Return how many events only wait behind others, at any destination; counting stops at the limit."""
    return int(dialect.run(dialect.statements.count_parked, (limit,)).fetchone()[0])


def release(dialect: Dialect, most: Mapping[Pair, int]) -> int:
    """Make the first events that wait in each of these pairs due now, up to its number; return how many are due.

    The event of a row may have ended meanwhile. If that is so for all rows that were read, the next rows are released.
    """
    while most:
        deleted, made_due = _release_once(dialect, most)
        if made_due or not deleted:
            return made_due
    return 0


def _release_once(dialect: Dialect, most: Mapping[Pair, int]) -> tuple[int, int]:
    pairs = sorted(most)
    if dialect.name == "postgres":
        numbers = array_of_numbers([most[pair] for pair in pairs])
        parameters = (*_parameters(dialect, pairs), numbers, max(most.values()))
        deleted, made_due = dialect.run(dialect.statements.release, parameters).fetchone()
        return int(deleted), int(made_due)
    deleted = made_due = 0
    with dialect.atomic():
        for pair in pairs:
            ids = [id for (id,) in dialect.run(dialect.statements.first_events, (*pair, most[pair])).fetchall()]
            if ids:
                deleted += dialect.run(dialect.statements.forget_waiting, (*pair, json.dumps(ids))).rowcount
                made_due += dialect.run(dialect.statements.make_due, (json.dumps(ids),)).rowcount
    return deleted, made_due


def release_keys(dialect: Dialect, keys: Collection[str]) -> int:
    """Make the first event that waits at each destination due, for keys whose events an operator has changed."""
    pairs = [
        (key, name)
        for key in keys
        for (name,) in dialect.run(dialect.statements.waiting_destinations, (key,)).fetchall()
    ]
    return release(dialect, dict.fromkeys(pairs, 1))


def unpark_all(dialect: Dialect, destination: str | None = None) -> None:
    """Make all parked events due, or those that wait at one destination, because the destinations have changed.

    An event is parked for the destinations that it had when it was claimed. A new destination might otherwise get a
    later event first.
    """
    dialect.run(dialect.statements.unpark_all, (destination,))


def unpark(dialect: Dialect, row_ids: Sequence[str]) -> int:
    """Make these events due if they are parked; return how many were."""
    return int(dialect.run(dialect.statements.unpark, (dialect.row_ids(row_ids),)).rowcount)


def forget_destination(dialect: Dialect, destination: str) -> None:
    """Make the events that wait at a destination due, and forget that they wait there: it is retired."""
    unpark_all(dialect, destination)
    dialect.run(dialect.statements.forget_destination, (destination,))
