"""An entry of a stream, and the event that it was made from: `destinations.stream.fields` the other way round."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from outbox.errors import InvalidMessage
from outbox.events.encoding import EMPTY
from outbox.events.event import Event


@dataclass(frozen=True, slots=True)
class StreamEntry:
    """As Redis hands it out."""

    id: str
    fields: dict[bytes, bytes]
    # How often it was handed out, this time included.
    deliveries: int = 1
    # It was handed out as often as it may be: whoever had it last died of it, or fell silent.
    spent: bool = False


def event_of(entry: StreamEntry, max_deliveries: int) -> Event:
    """The event; InvalidMessage if it can't be read, which trying again won't change."""
    try:
        event = Event.received(
            id=UUID(_text(entry, "id")),
            event_type=_text(entry, "type"),
            aggregate_type=_text(entry, "aggregate_type"),
            aggregate_id=_text(entry, "aggregate_id"),
            body=_json(entry, "data"),
            headers=_json(entry, "headers") if b"headers" in entry.fields else EMPTY,
            correlation_id=_optional(entry, "correlation_id"),
            tenant_id=_optional(entry, "tenant_id"),
            created_at=_moment(entry, "time"),
            attempt=entry.deliveries,
            max_attempts=max_deliveries,
        )
    except (ValueError, OverflowError, RecursionError) as error:
        raise InvalidMessage(f"The entry can't be read as an event: {error}") from None
    return event


def _text(entry: StreamEntry, name: str) -> str:
    found = entry.fields.get(name.encode())
    if not found:
        raise ValueError(f"it has no {name!r}")
    return found.decode()


def _optional(entry: StreamEntry, name: str) -> str | None:
    return _text(entry, name) if name.encode() in entry.fields else None


def _json(entry: StreamEntry, name: str) -> str:
    """The text of a JSON object, to the byte."""
    text = _text(entry, name)
    if not isinstance(json.loads(text), dict):
        raise ValueError(f"{name!r} is no JSON object")  # noqa: TRY004  (about what came, not about an argument)
    return text


def _moment(entry: StreamEntry, name: str) -> datetime:
    moment = datetime.fromisoformat(_text(entry, name))
    if moment.tzinfo is None:
        raise ValueError(f"{name!r} has no time zone")
    return moment.astimezone(UTC)  # here rather than where it is read: at either end of the calendar there is no UTC
