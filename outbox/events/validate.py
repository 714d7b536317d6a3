"""Check the arguments of `emit`, and make the row to insert from them.

Everything that the database or a destination would refuse later is refused here, before any SQL: an error raised inside
the INSERT would abort the caller's transaction.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from outbox.errors import InvalidEvent
from outbox.events.context import inherited_context
from outbox.events.encoding import encode_object
from outbox.events.new_event import NewEvent, Unique
from outbox.settings import Settings
from outbox.storage import timestamp
from outbox.storage.dialect import AT_ONCE
from outbox.storage.ids import uuid7
from outbox.storage.models import CONTEXT_LENGTH, EVENT, KEY_LENGTH, NAME_LENGTH
from outbox.telemetry import tracing
from outbox.text import check_text

MAX_ATTEMPTS_LIMIT = 1_000
LONGEST_DELAY = timedelta(days=3_650)


class Draft(NamedTuple):
    """A validated event that is not stored yet: what `Dialect.insert` is given, in its order.

    It is a tuple for speed, as NewEvent is.
    """

    id: UUID
    aggregate_type: str
    aggregate_id: str
    event_type: str
    payload: str
    headers: str
    correlation_id: str | None
    tenant_id: str | None
    idempotency_key: str
    max_attempts: int
    kind: str
    due_at: str | None
    due_in: float


def validate(event: NewEvent, settings: Settings) -> Draft:
    """Return the row to insert; raise InvalidEvent if an argument is invalid."""
    aggregate_type, aggregate_id, event_type, payload, key, headers, correlation_id, tenant_id, attempts, after = event
    id = uuid7()
    aggregate_type = check_text(aggregate_type, "aggregate_type", NAME_LENGTH)
    aggregate_id = check_text(_aggregate_id(aggregate_id), "aggregate_id", NAME_LENGTH)
    if correlation_id is None or tenant_id is None:
        inherited = inherited_context()
        correlation_id = inherited[0] if correlation_id is None else correlation_id
        tenant_id = inherited[1] if tenant_id is None else tenant_id
    due_at, due_in = AT_ONCE if after is None else due_time(after, "deliver_after")
    return Draft(
        id,
        aggregate_type,
        aggregate_id,
        _event_type(event_type),
        encode_object(payload, "payload", settings.max_payload_bytes),
        encode_object(tracing.with_context(headers), "headers", settings.max_payload_bytes),
        None if correlation_id is None else check_text(correlation_id, "correlation_id", CONTEXT_LENGTH),
        None if tenant_id is None else check_text(tenant_id, "tenant_id", CONTEXT_LENGTH),
        f"{aggregate_type}:{aggregate_id}" if key is None else _key(key, id),
        settings.max_attempts if attempts is None else _max_attempts(attempts),
        EVENT,
        due_at,
        due_in,
    )


def _aggregate_id(value: object) -> str:
    """Return the id as text. Ids are often integers or UUIDs; another type is most likely a mistake."""
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            return str(value)
        except ValueError:  # Python refuses to write integers of more than some thousand digits
            raise InvalidEvent(f"aggregate_id is longer than the limit of {NAME_LENGTH} characters.") from None
    if isinstance(value, UUID):
        return str(value)
    raise InvalidEvent(f"aggregate_id must be text, an integer or a UUID, not {type(value).__name__}.")


def _event_type(value: str) -> str:
    if "*" in check_text(value, "event_type", NAME_LENGTH):
        raise InvalidEvent(f"event_type must not contain '*', which stands for any type: not {value!r}.")
    return value


def _key(given: str | Unique, id: UUID) -> str:
    return str(id) if isinstance(given, Unique) else check_text(given, "idempotency_key", KEY_LENGTH)


def _max_attempts(given: int) -> int:
    if type(given) is not int or not 1 <= given <= MAX_ATTEMPTS_LIMIT:
        raise InvalidEvent(f"max_attempts must be a whole number from 1 to {MAX_ATTEMPTS_LIMIT}, not {given!r}.")
    return given


def due_time(after: datetime | timedelta, field: str) -> tuple[str | None, float]:
    """Return when the event is due: a time and 0, or None and the seconds to add to the database's current time."""
    if isinstance(after, timedelta):
        if not timedelta(0) <= after <= LONGEST_DELAY:
            raise InvalidEvent(f"{field} must be between zero and {LONGEST_DELAY.days} days from now, not {after}.")
        return None, after.total_seconds()
    if not isinstance(after, datetime):
        raise InvalidEvent(f"{field} must be a datetime or a timedelta, not {type(after).__name__}.")
    if after.tzinfo is None:
        raise InvalidEvent(f"{field} must have a timezone: use datetime.now(UTC) or .replace(tzinfo=UTC).")
    if not timestamp.EARLIEST <= after <= datetime.now(UTC) + LONGEST_DELAY:
        raise InvalidEvent(
            f"{field} must be between the year {timestamp.EARLIEST.year} and {LONGEST_DELAY.days} days from now, "
            f"not {after}."
        )
    return timestamp.to_text(after), 0.0
