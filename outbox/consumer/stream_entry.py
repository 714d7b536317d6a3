"""Read an entry of a stream as an event. `destinations.stream.fields` writes such entries."""

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
    """An entry as Redis delivered it to this consumer."""

    id: str
    fields: dict[bytes, bytes]
    # How often the entry was delivered, this time included, but no more than `max_deliveries`.
    deliveries: int = 1
    # Whether the entry was delivered `max_deliveries` times before, and each consumer crashed or stopped responding.
    is_exhausted: bool = False


def event_of(entry: StreamEntry, max_deliveries: int) -> Event:
    """Return the entry's event. Raise InvalidMessage if the entry is invalid; a retry would fail in the same way."""
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
            created_at=_timestamp(entry, "time"),
            attempt=entry.deliveries,
            max_attempts=max_deliveries,
        )
    except (ValueError, OverflowError, RecursionError) as error:
        raise InvalidMessage(f"The entry can't be read as an event: {error}") from None
    return event


def _text(entry: StreamEntry, name: str) -> str:
    value = entry.fields.get(name.encode())
    if not value:
        raise ValueError(f"it has no {name!r}")
    return value.decode()


def _optional(entry: StreamEntry, name: str) -> str | None:
    return _text(entry, name) if name.encode() in entry.fields else None


def _json(entry: StreamEntry, name: str) -> str:
    """Return the text of a JSON object, unchanged."""
    text = _text(entry, name)
    if not isinstance(json.loads(text), dict):
        raise ValueError(f"{name!r} is not a JSON object")  # noqa: TRY004  (about the entry, not about an argument)
    return text


def _timestamp(entry: StreamEntry, name: str) -> datetime:
    timestamp = datetime.fromisoformat(_text(entry, name))
    if timestamp.tzinfo is None:
        raise ValueError(f"{name!r} has no time zone")
    # The conversion is done here, because it can fail: near the first and the last year of the calendar, a time may not
    # exist in UTC.
    return timestamp.astimezone(UTC)
