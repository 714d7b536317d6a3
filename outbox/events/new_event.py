"""The arguments of `emit` as an object, which `emit_many` takes a list of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Literal, NamedTuple

from outbox.errors import InvalidEvent
from outbox.events.declared_object import DeclaredObject

OnDuplicate = Literal["raise", "ignore", "replace"]
Ordered = bool | Literal["strict"]


class Unique:
    """The type of `UNIQUE`."""

    def __repr__(self) -> str:
        return "outbox.UNIQUE"


UNIQUE: Final = Unique()
"""`idempotency_key=outbox.UNIQUE`: an event that may repeat; its key is its own id."""


class NewEvent(NamedTuple):
    """One event for `emit_many`; the fields are `emit`'s arguments.

    It is a tuple for speed: as frozen dataclasses, this class and `Draft` took a fifth of the time of `emit`.
    """

    aggregate_type: str
    aggregate_id: object
    event_type: str | DeclaredObject | type[Any]
    payload: object = None
    idempotency_key: str | Unique | None = None
    headers: Mapping[str, Any] | None = None
    correlation_id: str | None = None
    tenant_id: str | None = None
    max_attempts: int | None = None
    deliver_after: datetime | timedelta | None = None
    ordering_key: str | None = None
    ordered: Ordered = False
    hold: bool = False
    subject: str | None = None


def as_new_event(item: NewEvent | Mapping[str, Any] | Sequence[Any]) -> NewEvent:
    """Return an item of `emit_many` as a NewEvent: it may be one, a dict of emit's arguments, or a tuple of them."""
    try:
        if isinstance(item, NewEvent):
            return item
        return NewEvent(**item) if isinstance(item, Mapping) else NewEvent(*item)
    except TypeError as error:
        raise InvalidEvent(
            "emit_many takes dicts of emit's arguments, tuples (aggregate_type, aggregate_id, event_type, payload) "
            f"or outbox.NewEvent: {error}."
        ) from None
