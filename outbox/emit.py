"""emit: validate, insert through the caller's own connection, ring the bell after the commit.

Nothing here opens a savepoint for one event, and a duplicate is answered by the database as "no row", not as an
error: whatever happens, the caller's transaction can go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal
from uuid import UUID

from outbox import timestamp, tracing
from outbox.context import in_force
from outbox.encoding import check_text, encode_object
from outbox.errors import DuplicateEvent, InvalidEvent, TransactionRequired
from outbox.identifier import as_uuid, uuid7
from outbox.models import CONTEXT_LENGTH, KEY_LENGTH, NAME_LENGTH, PENDING, Encoded, OutboxEvent

if TYPE_CHECKING:
    from outbox.core import Outbox
    from outbox.database import Row

OnDuplicate = Literal["raise", "ignore"]

MAX_ATTEMPTS_LIMIT = 1_000
LONGEST_DELAY = timedelta(days=3_650)


class Unique:
    """The type of `UNIQUE`."""

    def __repr__(self) -> str:
        return "outbox.UNIQUE"


UNIQUE: Final = Unique()
"""`idempotency_key=outbox.UNIQUE`: an event that may repeat; its key is its own id."""


@dataclass(frozen=True, slots=True)
class NewEvent:
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


@dataclass(frozen=True, slots=True)
class Draft:
    """A validated event, on its way into the table."""

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
    due_in: timedelta

    def row(self, box: Outbox) -> Row:
        """The parameters of INSERT, in its order."""
        return (
            box.dialect.id(self.id),
            self.aggregate_type,
            self.aggregate_id,
            self.event_type,
            self.payload,
            self.headers,
            self.correlation_id,
            self.tenant_id,
            self.idempotency_key,
            self.max_attempts,
            self.due_at,
            box.dialect.seconds(self.due_in.total_seconds()),
        )

    def stored(self, seq: int, next_attempt_at: Any, created_at: Any) -> OutboxEvent:
        """The row that the database now has."""
        created = timestamp.from_database(created_at)
        event = OutboxEvent(__no_default__=True)
        # As a query would fill it in: setting the fields one by one takes three times as long.
        event.__data__ = {
            "id": self.id,
            "seq": seq,
            "aggregate_type": self.aggregate_type,
            "aggregate_id": self.aggregate_id,
            "event_type": self.event_type,
            "payload": Encoded(self.payload),
            "headers": Encoded(self.headers),
            "correlation_id": self.correlation_id,
            "tenant_id": self.tenant_id,
            "idempotency_key": self.idempotency_key,
            "status": PENDING,
            "attempts": 0,
            "max_attempts": self.max_attempts,
            "next_attempt_at": timestamp.from_database(next_attempt_at),
            "created_at": created,
            "updated_at": created,
        }
        return event


def emit(box: Outbox, event: NewEvent, on_duplicate: OnDuplicate) -> OutboxEvent:
    """Store one event. It exists if and only if the caller's transaction commits."""
    _check_on_duplicate(on_duplicate)
    draft = prepare(box, event)
    _check_transaction(box)
    stored = _store(box, draft, on_duplicate)
    box.bell.ring_after_commit(box.dialect)
    if stored.id == draft.id:
        _count_after_commit(box, 1)
    return stored


def emit_many(box: Outbox, events: Iterable[NewEvent], on_duplicate: OnDuplicate) -> list[OutboxEvent]:
    """Store many events, all or none, a round trip per thousand; answers in the caller's order."""
    _check_on_duplicate(on_duplicate)
    drafts = [prepare(box, event, f"event {number}: ") for number, event in enumerate(events)]
    if not drafts:
        return []
    if on_duplicate == "raise":
        _refuse_doubles(drafts)
    _check_transaction(box)
    by_id = {draft.id: draft for draft in drafts}
    stored: dict[UUID, OutboxEvent] = {}
    with box.dialect.all_or_nothing():
        for row in box.dialect.insert_many([draft.row(box) for draft in drafts]):
            id = as_uuid(row[0])
            stored[id] = by_id[id].stored(*row[1:])
        for draft in drafts:
            if draft.id not in stored:
                stored[draft.id] = _store(box, draft, on_duplicate)
        box.bell.ring_after_commit(box.dialect)
    _count_after_commit(box, sum(event.id in by_id for event in stored.values()))
    return [stored[draft.id] for draft in drafts]


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


def prepare(box: Outbox, event: NewEvent, where: str = "") -> Draft:
    """Check everything that could fail later; nothing has been written yet."""
    settings = box.settings
    id = uuid7()
    aggregate_type = check_text(event.aggregate_type, f"{where}aggregate_type", NAME_LENGTH)
    aggregate_id = check_text(_identity(event.aggregate_id, where), f"{where}aggregate_id", NAME_LENGTH)
    correlation_id, tenant_id = in_force()
    due_at, due_in = _due(event.deliver_after, where)
    return Draft(
        id=id,
        aggregate_type=aggregate_type,
        aggregate_id=aggregate_id,
        event_type=_event_type(event.event_type, where),
        payload=encode_object(event.payload, f"{where}payload", settings.max_payload_bytes),
        headers=encode_object(tracing.with_context(event.headers), f"{where}headers", settings.max_payload_bytes),
        correlation_id=_optional(event.correlation_id, correlation_id, f"{where}correlation_id"),
        tenant_id=_optional(event.tenant_id, tenant_id, f"{where}tenant_id"),
        idempotency_key=_key(event.idempotency_key, id, f"{aggregate_type}:{aggregate_id}", where),
        max_attempts=_max_attempts(event.max_attempts, settings.max_attempts, where),
        due_at=due_at,
        due_in=due_in,
    )


def _store(box: Outbox, draft: Draft, on_duplicate: OnDuplicate) -> OutboxEvent:
    while True:
        row = box.dialect.run(box.dialect.statements.insert, draft.row(box)).fetchone()
        if row is not None:
            return draft.stored(*row[1:])
        same_key = (OutboxEvent.event_type == draft.event_type) & (OutboxEvent.idempotency_key == draft.idempotency_key)
        existing: OutboxEvent | None = OutboxEvent.select().where(same_key).first(box.database)
        if existing is None:
            continue  # it was cleaned up between the two statements: the key is free again
        box.counters.add(duplicates=1)
        if on_duplicate == "ignore":
            return existing
        raise DuplicateEvent(draft.event_type, draft.idempotency_key, existing.id)


def _count_after_commit(box: Outbox, new: int) -> None:
    """What is rolled back was never emitted; but for a savepoint's, of which nothing is heard."""
    try:
        box.database.after_commit(lambda: box.counters.add(emitted=new))
    except ValueError:
        box.counters.add(emitted=new)  # manual_commit: Peewee does not know when that commits
    if box.bell.is_elsewhere:
        box.publisher.start()


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
    if box.settings.require_transaction and not box.dialect.in_transaction:
        raise TransactionRequired


def _identity(value: object, where: str) -> str:
    """Ids are often integers or UUIDs; anything else that is not text is more likely a mistake."""
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            return str(value)
        except ValueError:  # Python writes out no number of more than some thousand digits
            raise InvalidEvent(f"{where}aggregate_id is longer than the limit of {NAME_LENGTH} characters.") from None
    if isinstance(value, UUID):
        return str(value)
    raise InvalidEvent(f"{where}aggregate_id must be text, an integer or a UUID, not {type(value).__name__}.")


def _event_type(value: str, where: str) -> str:
    if "*" in check_text(value, f"{where}event_type", NAME_LENGTH):
        raise InvalidEvent(f"{where}event_type must not contain '*', which stands for any type: not {value!r}.")
    return value


def _key(given: str | Unique | None, id: UUID, default: str, where: str) -> str:
    if given is None:
        return default
    if isinstance(given, Unique):
        return str(id)
    return check_text(given, f"{where}idempotency_key", KEY_LENGTH)


def _optional(given: str | None, inherited: str | None, field: str) -> str | None:
    value = inherited if given is None else given
    return None if value is None else check_text(value, field, CONTEXT_LENGTH)


def _max_attempts(given: int | None, default: int, where: str) -> int:
    if given is None:
        return default
    if type(given) is not int or not 1 <= given <= MAX_ATTEMPTS_LIMIT:
        raise InvalidEvent(f"{where}max_attempts must be a whole number from 1 to {MAX_ATTEMPTS_LIMIT}, not {given!r}.")
    return given


def _due(after: datetime | timedelta | None, where: str) -> tuple[str | None, timedelta]:
    """When the event is due: at a moment, or this long from the database's now."""
    field = f"{where}deliver_after"
    if after is None:
        return None, timedelta(0)
    if isinstance(after, timedelta):
        if not timedelta(0) <= after <= LONGEST_DELAY:
            raise InvalidEvent(f"{field} must be between zero and {LONGEST_DELAY.days} days from now, not {after}.")
        return None, after
    if not isinstance(after, datetime):
        raise InvalidEvent(f"{field} must be a datetime or a timedelta, not {type(after).__name__}.")
    if after.tzinfo is None:
        raise InvalidEvent(f"{field} must have a timezone: use datetime.now(UTC) or .replace(tzinfo=UTC).")
    try:
        too_late = after.astimezone(UTC) > datetime.now(UTC) + LONGEST_DELAY
    except OverflowError:
        too_late = True
    if too_late:
        raise InvalidEvent(f"{field} must be at most {LONGEST_DELAY.days} days from now, not {after}.")
    return timestamp.to_text(after), timedelta(0)
