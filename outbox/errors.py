"""Every error that this library raises, under one root.

OutboxError
├── SettingsError          a setting is wrong; fix it and start again
├── InvalidEvent           emit refused its input; nothing was written
├── InvalidMessage         the inbox can't tell which message that is
├── DuplicateEvent         that key was emitted before (also a peewee.IntegrityError)
├── EventNotStored         the database stored no row, though no duplicate is to be seen
├── NotPermitted           the database role lacks a right (also a peewee.ProgrammingError)
├── TransactionRequired    emit needs a transaction here (OUTBOX_REQUIRE_TRANSACTION)
├── TransactionOpen        deliveries can't run inside the caller's transaction
├── SchemaError            the tables are missing or too old, or the database can't keep every text
├── RegistrationError      a handler or destination can't be registered like this
│   └── NothingRegistered  a process that should deliver has no handler and no other destination
├── VerificationError      a webhook that was received is not what it says
└── Signal                 raised by a handler to say what should happen to its event
    ├── Reject             fail now, for good
    ├── RetryLater         try again after a while; costs an attempt
    └── Unavailable        could not be reached; try again, costs no attempt
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

import peewee


class OutboxError(Exception):
    """The root of this library's errors."""


class SettingsError(OutboxError, ValueError):
    """A setting has a value that can't be used."""


class InvalidEvent(OutboxError, ValueError):
    """What was given to emit can't be stored; nothing was written and the transaction goes on."""


class InvalidMessage(OutboxError, ValueError):
    """The inbox knows messages by their ids, and this has none that it could keep."""


class DuplicateEvent(OutboxError, peewee.IntegrityError):
    """An event of this type with this idempotency key exists; the transaction goes on."""

    def __init__(self, event_type: str, idempotency_key: str, existing_id: UUID | None) -> None:
        self.event_type = event_type
        self.idempotency_key = idempotency_key
        self.existing_id = existing_id
        existing = "in this same call" if existing_id is None else f"as event {existing_id}"
        super().__init__(
            f"{event_type!r} with the idempotency key {idempotency_key!r} was already emitted {existing}. "
            "If it may happen again, pass idempotency_key=outbox.UNIQUE or a key of its own; "
            'to get the one that exists, pass on_duplicate="ignore".'
        )


class EventNotStored(OutboxError, RuntimeError):
    """The database took the insert, stored nothing, and shows no duplicate; the transaction goes on."""

    def __init__(self, event_type: str, idempotency_key: str, table: str) -> None:
        super().__init__(
            f"{event_type!r} with the idempotency key {idempotency_key!r} was not stored: the database inserted no row "
            f"into {table}, and shows no row with that key. Probable reasons: a BEFORE INSERT trigger on the table "
            "returns NULL, or row-level security hides the event that has the key. Remove the trigger, or change it to "
            f"return NEW; let this role see all rows, with a policy or with `ALTER TABLE {table} DISABLE ROW LEVEL "
            "SECURITY`."
        )


class NotPermitted(OutboxError, peewee.ProgrammingError):
    """The database role lacks a right that this call needs; the transaction goes on."""


class TransactionRequired(OutboxError, RuntimeError):
    """emit was called where there is no transaction, and needs one."""


class TransactionOpen(OutboxError, RuntimeError):
    """Deliveries were asked for inside an open transaction."""

    def __init__(self) -> None:
        super().__init__(
            "Events can't be delivered inside an open transaction: handlers would run before the commit, and "
            "the transaction would stay open while they do. Call this after the `with db.atomic():` block."
        )


class SchemaError(OutboxError, RuntimeError):
    """The outbox's tables are missing or older than this version needs, or the database can't keep every text."""


class RegistrationError(OutboxError, ValueError):
    """A handler or destination can't be registered as asked."""


class NothingRegistered(RegistrationError):
    """A process that should deliver has no handler and no other destination."""

    def __init__(self, modules: Sequence[str] = ()) -> None:
        where = f" (imported: {', '.join(modules)})" if modules else ""
        super().__init__(
            f"no handler is registered, and no other destination{where}, so a worker would have nothing to deliver "
            "to. Name the module that holds your @outbox.handler functions: `outbox worker your.module`, "
            "`dramatiq jobs your.module` or `outbox up your.module`. Or set OUTBOX_WEBHOOK_URL or OUTBOX_STREAM."
        )


class VerificationError(OutboxError, ValueError):
    """A request that was received is not from whom it says, or not from now."""


def describe(error: BaseException) -> str:
    """`ValueError: what it said`"""
    try:
        text = str(error)
    except Exception:
        text = "(its message could not be read)"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def as_text(error: object) -> str:
    """Return an error as text, also one that was passed as an exception instead of a text."""
    if isinstance(error, str):
        return error
    return describe(error) if isinstance(error, BaseException) else str(error)


class Signal(OutboxError):
    """What a handler raises to decide its event's fate itself."""


class Reject(Signal):
    """Trying again can't help: the event fails now, for good."""


class RetryLater(Signal):
    """Refused for now: try again after `after` (the usual backoff if not given). Costs an attempt."""

    def __init__(self, after: timedelta | float | None = None, error: str = "the handler asked for a retry") -> None:
        if not isinstance(after, timedelta | int | float | None):
            raise TypeError(f"RetryLater(after) takes a timedelta or seconds, not {after!r}; the text is error=…")
        self.after = timedelta(seconds=after) if isinstance(after, int | float) else after
        super().__init__(error)


class Unavailable(Signal):
    """What the event was meant for could not be reached: try again later, at no cost.

    A handler raises it; a destination may also return it as the outcome of an event. `error` is a text, or the
    exception that says why.
    """

    def __init__(
        self, error: str | BaseException = "unavailable", *, not_before: datetime | timedelta | None = None
    ) -> None:
        if not isinstance(not_before, datetime | timedelta | None):
            raise TypeError(f"Unavailable(not_before=…) takes a datetime or a timedelta, not {not_before!r}")
        self.error = as_text(error)
        self.not_before = not_before
        super().__init__(self.error)
