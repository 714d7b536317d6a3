"""cancel: take back an event or a job that no destination may have seen.

The row is deleted in the caller's transaction. A worker that claims at the same time either skips the row, because this
transaction has locked it, or has claimed it already: then it is not cancelled.
"""

from __future__ import annotations

from typing import Protocol
from uuid import UUID

from outbox.errors import InvalidEvent
from outbox.events.job_row import job_key
from outbox.storage.dialect import Dialect
from outbox.storage.models import EVENT, JOB, OutboxEvent

_NO_ID = UUID(int=0)


class HasMessageId(Protocol):
    """A Dramatiq message."""

    @property
    def message_id(self) -> str: ...


class HasActorName(Protocol):
    """A Dramatiq actor."""

    @property
    def actor_name(self) -> str: ...


def cancel(
    dialect: Dialect,
    id: UUID | str | OutboxEvent | HasMessageId | None = None,
    *,
    event_type: str | None = None,
    actor: HasActorName | str | None = None,
    idempotency_key: str | None = None,
) -> bool:
    """Delete the row if it was never attempted; return whether it was deleted."""
    names = [name for name in (event_type, actor) if name is not None]
    if id is not None and not names and idempotency_key is None:
        return _delete(dialect, dialect.statements.cancel, _ids(dialect, id))
    if id is not None or len(names) != 1 or idempotency_key is None:
        raise InvalidEvent(
            "cancel takes an id, or event_type=… with idempotency_key=…, or actor=… with idempotency_key=…."
        )
    if event_type is not None:
        return _delete(dialect, dialect.statements.cancel_by_key, (event_type, idempotency_key, EVENT))
    name = actor if isinstance(actor, str) else getattr(actor, "actor_name", None)
    if not isinstance(name, str):
        raise InvalidEvent(f"actor must be a Dramatiq actor or its name, not {actor!r}.")
    return _delete(dialect, dialect.statements.cancel_by_key, (name, job_key(idempotency_key), JOB))


def _ids(dialect: Dialect, given: object) -> tuple[object, str]:
    """Return the id of a row, and the same id as that of a message. Not every message's id is a UUID."""
    id = given.id if isinstance(given, OutboxEvent) else getattr(given, "message_id", given)
    if not isinstance(id, UUID | str):
        raise InvalidEvent(f"cancel takes an event, a message or an id, not {given!r}.")
    try:
        row_id = UUID(str(id))
    except ValueError:
        row_id = _NO_ID
    return dialect.id(row_id), str(id)


def _delete(dialect: Dialect, statement: str, parameters: tuple[object, ...]) -> bool:
    dialect.check_caller("cancel")
    with dialect.connection():
        return bool(dialect.run(statement, parameters).rowcount)
