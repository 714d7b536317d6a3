"""Ids of events as operators type them: whole, shortened to their first digits, or as `outbox list` prints them.

    01a1f5ae-ad7f-75b5-8f68-205a6aed8269     the whole id
    01a1f5ae-ad7f-75b5                       its first digits, eight or more
    01a1f5ae…d8269  or  01a1f5ae..d8269      its first and its last digits

An id begins with the time of its creation. So its first digits are looked up in an index, and events of the same minute
share them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

import click

from outbox.admin.queries import find_ids
from outbox.core import Outbox

_PARTS = re.compile(r"([0-9a-f]{8,32})(?:(?:…|\.\.)([0-9a-f]{1,12}))?", re.IGNORECASE)
# How many candidates are named if there are several.
MOST_NAMED = 5
HEAD, TAIL = 8, 6


@dataclass(frozen=True, slots=True)
class EventId:
    """An id as it was typed: the digits with which it begins and ends."""

    text: str
    head: str
    tail: str = ""


def parse_partial_id(value: str) -> EventId:
    """Parse a whole id, or a part of one."""
    text = value.strip().removeprefix("urn:uuid:").strip("{}")
    match = _PARTS.fullmatch(text.replace("-", ""))
    if match is None:
        raise click.BadParameter(
            f"{value!r} is not an event id, such as 0198c0de-0000-7000-8000-000000000000, nor its first eight digits, "
            "nor its first and last ones (0198c0de…000000)."
        )
    return EventId(value, match[1].lower(), (match[2] or "").lower())


def resolve(box: Outbox, given: EventId) -> UUID:
    """Return the id that was meant. One that is whole is returned as it is, whether or not such an event exists."""
    if len(given.head) == len(UUID(int=0).hex):
        return UUID(given.head)
    found = find_ids(box.dialect, given.head, given.tail, MOST_NAMED + 1)
    if len(found) == 1:
        return found[0]
    if not found:
        raise click.UsageError(f"No event has an id like {given.text}.")
    named = "".join(f"\n  {id}" for id in found[:MOST_NAMED])
    more = "\n  and more" if len(found) > MOST_NAMED else ""
    raise click.UsageError(f"Several events have an id like {given.text}:{named}{more}")


def resolve_all(box: Outbox, given: Iterable[EventId]) -> tuple[UUID, ...]:
    """Return the ids that were meant."""
    return tuple(resolve(box, each) for each in given)


def short_id(id: UUID) -> str:
    """Return the first and the last digits of an id, which commands accept: 01a1f5ae…ed8269."""
    return f"{id.hex[:HEAD]}…{id.hex[-TAIL:]}"
