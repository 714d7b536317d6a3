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
from outbox.events.new_event import NewEvent, Ordered, Unique
from outbox.settings import Settings
from outbox.storage import timestamp
from outbox.storage.dialect import AT_ONCE
from outbox.storage.ids import uuid7
from outbox.storage.models import CONTEXT_LENGTH, EVENT, HOLDS, KEY_LENGTH, NAME_LENGTH, SCHEDULED
from outbox.telemetry import tracing

MAX_ATTEMPTS_LIMIT = 1_000
LONGEST_DELAY = timedelta(days=3_650)
# The ordering key and the order state of an event without order.
UNORDERED = (None, None)


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
    ordering_key: str | None
    order_state: str | None
    kind: str
    subject: str | None
    due_at: str | None
    due_in: float


def validate(event: NewEvent, settings: Settings) -> Draft:
    """Return the row to insert; raise InvalidEvent if an argument is invalid."""
    aggregate_type, aggregate_id, event_type, payload, key, headers, correlation_id, tenant_id = event[:8]
    attempts, after, ordering_key, ordered, hold, subject = event[8:]
    id = uuid7()
    aggregate_type = check_text(aggregate_type, "aggregate_type", NAME_LENGTH)
    aggregate_id = check_text(_aggregate_id(aggregate_id), "aggregate_id", NAME_LENGTH)
    if correlation_id is None or tenant_id is None:
        inherited = inherited_context()
        correlation_id = inherited[0] if correlation_id is None else correlation_id
        tenant_id = inherited[1] if tenant_id is None else tenant_id
    due_at, due_in = AT_ONCE if after is None else due_time(after, "deliver_after")
    order_state = None
    if ordering_key is not None or ordered is not False or hold is not False:
        default = f"{aggregate_type}:{aggregate_id}"
        ordering_key, order_state = _order(ordering_key, ordered, default, hold=hold, is_scheduled=after is not None)
    return Draft(
        id,
        aggregate_type,
        aggregate_id,
        check_event_type(event_type),
        encode_object(payload, "payload", settings.max_payload_bytes),
        encode_object(tracing.with_context(headers), "headers", settings.max_payload_bytes),
        None if correlation_id is None else check_text(correlation_id, "correlation_id", CONTEXT_LENGTH),
        None if tenant_id is None else check_text(tenant_id, "tenant_id", CONTEXT_LENGTH),
        f"{aggregate_type}:{aggregate_id}" if key is None else _key(key, id),
        settings.max_attempts if attempts is None else _max_attempts(attempts),
        ordering_key,
        order_state,
        EVENT,
        None if subject is None else check_text(subject, "subject", KEY_LENGTH),
        due_at,
        due_in,
    )


def _order(
    key: str | None, ordered: Ordered, default_key: str, *, hold: bool, is_scheduled: bool
) -> tuple[str | None, str | None]:
    """Return the ordering key and the first order state."""
    if ordered not in (False, True, "strict"):
        raise InvalidEvent(f'ordered must be True, False or "strict", not {ordered!r}.')
    if key is None and ordered:
        key = default_key
    if hold and (key is None or not is_scheduled):
        raise InvalidEvent(
            "hold=True lets the later events of an ordering key wait for a scheduled event: it needs deliver_after, "
            "and ordering_key or ordered=True."
        )
    if key is None:
        return UNORDERED
    return check_text(key, "ordering_key", KEY_LENGTH), SCHEDULED if is_scheduled and not hold else HOLDS


def check_text(value: object, field: str, most: int) -> str:
    """Return a name or key as plain text; raise InvalidEvent unless it has 1 to `most` characters and is storable."""
    if not isinstance(value, str):
        raise InvalidEvent(f"{field} must be text, not {type(value).__name__}.")
    if not value:
        raise InvalidEvent(f"{field} must not be empty.")
    if len(value) > most:
        raise InvalidEvent(f"{field} is {len(value)} characters long; the limit is {most}.")
    if "\x00" in value:
        raise InvalidEvent(f"{field} contains a NUL character, which PostgreSQL can't store.")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidEvent(f"{field} contains a lone surrogate, which UTF-8 can't carry.") from None
    return str.__str__(value)  # a plain text, also for a member of an Enum of texts


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


def check_event_type(value: object, field: str = "event_type") -> str:
    """Return the type of an event; raise InvalidEvent if it can't be stored, or would be taken for a pattern."""
    text = check_text(value, field, NAME_LENGTH)
    if "*" in text:
        raise InvalidEvent(f"{field} must not contain '*', which stands for any type: not {value!r}.")
    return text


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
