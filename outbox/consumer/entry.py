"""Read an entry of a stream or queue as an event. `destinations.stream.fields` writes such entries.

Any program that can write to that stream or queue can write entries. So each field is checked as `emit` checks its
arguments: a handler may store the values, or emit them again, and would then fail at each delivery.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from outbox.errors import InvalidMessage
from outbox.events.encoding import EMPTY, check_object
from outbox.events.event import Event
from outbox.events.validate import check_event_type, check_text
from outbox.storage.models import CONTEXT_LENGTH, NAME_LENGTH

# What the column `seq` of the tables can hold.
MOST_SEQ = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry as the source delivered it to this consumer."""

    id: str
    fields: dict[bytes, bytes]
    # How often the entry was delivered, this time included, but no more than `max_deliveries`.
    deliveries: int = 1
    # Whether the entry was delivered `max_deliveries` times before, and each consumer crashed or stopped responding.
    is_exhausted: bool = False
    # The name under which the inbox counts the deliveries (`delivery_count.py`); None if the source counts them.
    counted_for: str | None = None
    # Whether the entry was delivered before, and the inbox has still to say how often.
    is_redelivered: bool = False
    # Why the entry has no fields: the source can't read it.
    error: str | None = None


def event_of(entry: Entry, max_deliveries: int, max_payload_bytes: int) -> Event:
    """Return the entry's event. Raise InvalidMessage if the entry is invalid; a retry would fail in the same way."""
    if entry.error is not None:
        raise InvalidMessage(entry.error)
    try:
        event = Event.received(
            id=UUID(_text(entry, "id")),
            event_type=check_event_type(_text(entry, "type"), "'type'"),
            aggregate_type=_text(entry, "aggregate_type", NAME_LENGTH),
            aggregate_id=_text(entry, "aggregate_id", NAME_LENGTH),
            body=_json(entry, "data", max_payload_bytes),
            headers=_json(entry, "headers", max_payload_bytes) if b"headers" in entry.fields else EMPTY,
            correlation_id=_optional(entry, "correlation_id"),
            tenant_id=_optional(entry, "tenant_id"),
            created_at=_timestamp(entry, "time"),
            attempt=entry.deliveries,
            max_attempts=max_deliveries,
            ordering_key=_optional(entry, "ordering_key"),
            seq=_seq(entry),
        )
    except (ValueError, OverflowError, RecursionError) as error:
        raise InvalidMessage(f"The entry can't be read as an event: {error}") from None
    return event


def _text(entry: Entry, name: str, most: int | None = None) -> str:
    """Return the text of a field. With `most`, check that it can be stored, and has at most this many characters."""
    value = entry.fields.get(name.encode())
    if not value:
        raise ValueError(f"it has no {name!r}")
    text = value.decode()
    return text if most is None else check_text(text, repr(name), most)


def _optional(entry: Entry, name: str) -> str | None:
    return _text(entry, name, CONTEXT_LENGTH) if name.encode() in entry.fields else None


def _seq(entry: Entry) -> int:
    """Return the number of an event with an ordering key, which a handler may store in a column like ours."""
    number = int(_optional(entry, "seq") or 0)
    if not 0 <= number <= MOST_SEQ:
        raise ValueError(f"'seq' is not from 0 to {MOST_SEQ}")
    return number


def _json(entry: Entry, name: str, limit: int) -> str:
    """Return the text of a JSON object, unchanged."""
    text = _text(entry, name)
    check_object(text, repr(name), limit)
    return text


def _timestamp(entry: Entry, name: str) -> datetime:
    timestamp = datetime.fromisoformat(_text(entry, name))
    if timestamp.tzinfo is None:
        raise ValueError(f"{name!r} has no time zone")
    # The conversion is done here, because it can fail: near the first and the last year of the calendar, a time may not
    # exist in UTC.
    return timestamp.astimezone(UTC)
