"""emit: validate, insert through the caller's own connection, ring the bell after the commit.

Nothing here opens a savepoint for one event, and a duplicate is answered by the database as "no row", not as an
error: whatever happens, the caller's transaction can go on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple
from uuid import UUID

from outbox.errors import DuplicateEvent, EventNotStored, InvalidEvent, TransactionRequired
from outbox.events.context import in_force
from outbox.events.encoding import encode_object
from outbox.storage import timestamp
from outbox.storage.dialect import AT_ONCE
from outbox.storage.ids import uuid7
from outbox.storage.models import CONTEXT_LENGTH, EVENT, KEY_LENGTH, NAME_LENGTH, PENDING, Encoded, OutboxEvent
from outbox.telemetry import tracing
from outbox.text import check_text

if TYPE_CHECKING:
    from outbox.core import Outbox
    from outbox.storage.dialect import Row

logger = logging.getLogger("outbox")

OnDuplicate = Literal["raise", "ignore"]

MAX_ATTEMPTS_LIMIT = 1_000
LONGEST_DELAY = timedelta(days=3_650)
# How often an event is inserted again whose key seemed to be taken, by a row that is not there.
INSERT_TRIES = 3


class Unique:
    """The type of `UNIQUE`."""

    def __repr__(self) -> str:
        return "outbox.UNIQUE"


UNIQUE: Final = Unique()
"""`idempotency_key=outbox.UNIQUE`: an event that may repeat; its key is its own id."""


# Tuples: as frozen dataclasses these two took a fifth of emit's own time.
class NewEvent(NamedTuple):
    """One event for `emit_many`; the fields are `emit`'s arguments."""

    aggregate_type: str
    aggregate_id: object
    event_type: str
    payload: object = None
    idempotency_key: str | Unique | None = None
    headers: Mapping[str, Any] | None = None
    correlation_id: str | None = None
    tenant_id: str | None = None
    max_attempts: int | None = None
    deliver_after: datetime | timedelta | None = None


class Draft(NamedTuple):
    """A validated event, on its way into the table: the parameters of INSERT_LATER, in its order."""

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
    due_at: str | None
    due_in: float

    def stored(self, seq: int, created_at: datetime, next_attempt_at: datetime) -> OutboxEvent:
        """The row that the database now has."""
        id, kind, thing, event_type, payload, headers, correlation_id, tenant_id, key, max_attempts, _, _ = self
        # As a query would make it and fill it in: setting the fields one by one takes three times as long.
        event = OutboxEvent.__new__(OutboxEvent)
        vars(event).update(_dirty=set(), __rel__={})
        event.__data__ = {
            "id": id,
            "seq": seq,
            "aggregate_type": kind,
            "aggregate_id": thing,
            "event_type": event_type,
            "payload": Encoded(payload),
            "headers": Encoded(headers),
            "correlation_id": correlation_id,
            "tenant_id": tenant_id,
            "idempotency_key": key,
            "status": PENDING,
            "attempts": 0,
            "max_attempts": max_attempts,
            "next_attempt_at": next_attempt_at,
            "created_at": created_at,
            "updated_at": created_at,
            "kind": EVENT,
        }
        return event


def emit(box: Outbox, event: NewEvent, on_duplicate: OnDuplicate) -> OutboxEvent:
    """Store one event. It exists if and only if the caller's transaction commits."""
    _check_on_duplicate(on_duplicate)
    draft = prepare(box, event)
    _check_transaction(box)
    stored = _store(box, draft, on_duplicate)
    box.notifier.notify_after_commit(box.dialect)
    if stored.id is draft.id:
        _count_after_commit(box, 1)
    return stored


def emit_many(box: Outbox, events: Iterable[NewEvent], on_duplicate: OnDuplicate) -> list[OutboxEvent]:
    """Store many events, all or none, a round trip per thousand; answers in the caller's order."""
    _check_on_duplicate(on_duplicate)
    drafts = [_prepare_one_of_many(box, number, event) for number, event in enumerate(events)]
    if not drafts:
        return []
    if on_duplicate == "raise":
        _refuse_doubles(drafts)
    _check_transaction(box)
    with box.dialect.atomic():
        rows = box.dialect.insert_many(drafts)
        stored = [_found(box, draft, on_duplicate, row) for draft, row in zip(drafts, rows, strict=True)]
        box.notifier.notify_after_commit(box.dialect)
    _count_after_commit(box, sum(event.id is draft.id for event, draft in zip(stored, drafts, strict=True)))
    return stored


def as_new_event(item: NewEvent | Mapping[str, Any] | Sequence[Any]) -> NewEvent:
    """What `emit_many` accepts: a NewEvent, a dict of emit's arguments, or a tuple of the first four."""
    try:
        if isinstance(item, NewEvent):
            return item
        return NewEvent(**item) if isinstance(item, Mapping) else NewEvent(*item)
    except TypeError as error:
        raise InvalidEvent(
            "emit_many takes dicts of emit's arguments, tuples (aggregate_type, aggregate_id, event_type, payload) "
            f"or outbox.NewEvent: {error}."
        ) from None


def prepare(box: Outbox, event: NewEvent) -> Draft:
    """Check everything that could fail later; nothing has been written yet."""
    aggregate_type, aggregate_id, event_type, payload, key, headers, correlation_id, tenant_id, attempts, after = event
    settings = box.settings
    id = uuid7()
    aggregate_type = check_text(aggregate_type, "aggregate_type", NAME_LENGTH)
    aggregate_id = check_text(_identity(aggregate_id), "aggregate_id", NAME_LENGTH)
    if correlation_id is None or tenant_id is None:
        inherited = in_force()
        correlation_id = inherited[0] if correlation_id is None else correlation_id
        tenant_id = inherited[1] if tenant_id is None else tenant_id
    due_at, due_in = AT_ONCE if after is None else _due(after)
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
        due_at,
        due_in,
    )


def _prepare_one_of_many(box: Outbox, number: int, event: NewEvent) -> Draft:
    try:
        return prepare(box, event)
    except InvalidEvent as error:
        raise InvalidEvent(f"event {number}: {error}") from None


def _store(box: Outbox, draft: Draft, on_duplicate: OnDuplicate) -> OutboxEvent:
    return _found(box, draft, on_duplicate, box.dialect.insert(draft))


def _found(box: Outbox, draft: Draft, on_duplicate: OnDuplicate, row: Row | None) -> OutboxEvent:
    """What the table holds, after an insert that has answered `row`."""
    for _ in range(INSERT_TRIES):
        if row is not None:
            return draft.stored(*row)
        existing = _existing(box, draft, on_duplicate)
        if existing is not None:
            box.counters.add(duplicates=1)
            if on_duplicate == "ignore":
                return existing
            raise DuplicateEvent(draft.event_type, draft.idempotency_key, existing.id)
        row = box.dialect.insert(draft)  # it was cleaned up between the two statements: the key is free again
    if row is None:
        raise EventNotStored(draft.event_type, draft.idempotency_key, box.dialect.tables.event)
    return draft.stored(*row)


def _existing(box: Outbox, draft: Draft, on_duplicate: OnDuplicate) -> OutboxEvent | None:
    """Return the event of the same type and key; only its id, if an error is all that is made of it."""
    event = OutboxEvent
    columns = [] if on_duplicate == "ignore" else [event.id]
    same_key = (event.event_type == draft.event_type) & (event.idempotency_key == draft.idempotency_key)
    found: list[OutboxEvent] = box.dialect.select(event.select(*columns).where(same_key))
    return found[0] if found else None


def _count_after_commit(box: Outbox, new: int) -> None:
    """What is rolled back was never emitted; but for a savepoint's, of which nothing is heard."""
    try:
        box.emitted.add(box.dialect, new)
    except ValueError:
        box.counters.add(emitted=new)  # manual_commit: Peewee does not know when that commits
    if box.notifier.runs_in_background:
        box.reporter.start()


def _check_on_duplicate(on_duplicate: str) -> None:
    if on_duplicate not in ("raise", "ignore"):
        raise InvalidEvent(f'on_duplicate must be "raise" or "ignore", not {on_duplicate!r}.')


def _refuse_doubles(drafts: Iterable[Draft]) -> None:
    """Found here rather than in the table: the event that the error would name is about to be taken back."""
    seen: set[tuple[str, str]] = set()
    for draft in drafts:
        key = (draft.event_type, draft.idempotency_key)
        if key in seen:
            raise DuplicateEvent(*key, existing_id=None)
        seen.add(key)


def _check_transaction(box: Outbox) -> None:
    """Refuse an emit outside a transaction, or warn of the first one."""
    required = box.settings.require_transaction
    if (box.warned_of_no_transaction and not required) or box.dialect.in_transaction:
        return
    if required:
        raise TransactionRequired(f"{_no_transaction(box)} Or set OUTBOX_REQUIRE_TRANSACTION=false.")
    box.warned_of_no_transaction = True
    logger.warning(
        "%s OUTBOX_REQUIRE_TRANSACTION=true makes this an error. It is logged once; further ones are not.",
        _no_transaction(box),
    )


def _no_transaction(box: Outbox) -> str:
    """Say what an emit outside a transaction means, how that comes, and what to do about it."""
    return (
        f"emit was called outside a transaction on {box.dialect.place}: the event is committed by itself, and stays if "
        "the change that it reports is rolled back. Either no transaction was open, or one is open on another Peewee "
        "database object than the outbox's, and so on another connection. Call emit inside `with db.atomic():`, and "
        "have the outbox use the same object: `outbox.configure(database=db)`."
    )


def _identity(value: object) -> str:
    """Ids are often integers or UUIDs; anything else that is not text is more likely a mistake."""
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            return str(value)
        except ValueError:  # Python writes out no number of more than some thousand digits
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


def _due(after: datetime | timedelta) -> tuple[str | None, float]:
    """When the event is due: at a moment, or this long from the database's now."""
    if isinstance(after, timedelta):
        if not timedelta(0) <= after <= LONGEST_DELAY:
            days = LONGEST_DELAY.days
            raise InvalidEvent(f"deliver_after must be between zero and {days} days from now, not {after}.")
        return None, after.total_seconds()
    if not isinstance(after, datetime):
        raise InvalidEvent(f"deliver_after must be a datetime or a timedelta, not {type(after).__name__}.")
    if after.tzinfo is None:
        raise InvalidEvent("deliver_after must have a timezone: use datetime.now(UTC) or .replace(tzinfo=UTC).")
    if not timestamp.EARLIEST <= after <= datetime.now(UTC) + LONGEST_DELAY:
        raise InvalidEvent(
            f"deliver_after must be between the year {timestamp.EARLIEST.year} and {LONGEST_DELAY.days} days from now, "
            f"not {after}."
        )
    return timestamp.to_text(after), 0.0
