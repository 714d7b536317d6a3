"""The errors that this library raises, under one root, and the description of any error as a text.

OutboxError
├── SettingsError          a setting is invalid: correct it and start again
├── InvalidEvent           the arguments of emit are invalid; nothing was written
│   └── TenantMismatch     the idempotency key belongs to an event of another tenant
├── InvalidMessage         the message has no id that the inbox could store
├── DuplicateEvent         an event with this key exists (also a peewee.IntegrityError)
├── EventNotStored         the database stored no row, and shows no duplicate
├── TransactionRequired    the call needs an open transaction, and there is none
├── TransactionOpen        deliveries can't run inside the caller's transaction
├── AsyncRequired          a blocking call can't use an asynchronous database: await the other one
├── SchemaError            the tables are missing or too old, or the database can't store every text
├── RegistrationError      a handler or destination can't be registered as asked
│   └── NothingRegistered  a process that should deliver has no handler and no other destination
├── VerificationError      a webhook that was received is not authentic
├── DecryptionError        a stored payload can't be decrypted: it was changed after it was encrypted
│   └── EncryptionKeyMissing  this process lacks the key; another process may have it
├── UnreadableEvent        an event's payload does not fit the class that is declared for it
└── Signal                 raised by a handler to say what should happen to its event
    ├── Reject             the event fails now, and is not tried again
    ├── RetryLater         try again later; costs an attempt
    └── Unavailable        could not be reached: try again later, costs no attempt
        └── NewerEvent     this process is too old to read the event: a newer worker can
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

import peewee


class OutboxError(Exception):
    """The root of this library's errors."""


class SettingsError(OutboxError, ValueError):
    """A setting is invalid."""


class InvalidEvent(OutboxError, ValueError):
    """The arguments can't be stored as an event or a job. Nothing was written; the transaction can continue."""


class TenantMismatch(InvalidEvent):
    """The idempotency key belongs to an event of another tenant, which is neither returned nor replaced.

    It is no DuplicateEvent: this tenant's event is not stored yet, so it would be lost if the error were ignored.
    """

    def __init__(
        self, event_type: str, idempotency_key: str, tenant_id: str | None, existing_id: UUID, *, is_job: bool = False
    ) -> None:
        self.event_type = event_type
        self.idempotency_key = idempotency_key
        self.existing_id = existing_id
        what = f"A job of the actor {event_type!r}" if is_job else f"An event of the type {event_type!r}"
        owner = "no tenant" if tenant_id is None else f"the tenant {tenant_id!r}"
        super().__init__(
            f"{what} with the idempotency key {idempotency_key!r} exists as {existing_id}, but this call has {owner}, "
            "and that one has another. Nothing was stored. Keys are unique for all tenants together: make the tenant a "
            "part of the key, for example idempotency_key=f'{tenant_id}:{order_id}'. If both are meant to be the same, "
            "pass the same tenant_id."
        )


class InvalidMessage(OutboxError, ValueError):
    """The inbox identifies messages by their ids, and this message has none that can be stored."""


class DuplicateEvent(OutboxError, peewee.IntegrityError):
    """An event of this type, or a job of this actor, with this idempotency key exists; the transaction can continue.

    For a job, `event_type` is the name of the actor.
    """

    def __init__(
        self, event_type: str, idempotency_key: str, existing_id: UUID | None, *, is_job: bool = False
    ) -> None:
        self.event_type = event_type
        self.idempotency_key = idempotency_key
        self.existing_id = existing_id
        existing = "in this same call" if existing_id is None else f"as {'job' if is_job else 'event'} {existing_id}"
        super().__init__(
            f"A job of the actor {event_type!r} with the idempotency key {idempotency_key!r} was already sent "
            f"{existing}. If it may be sent again, pass a key of its own, or none; to get the message that exists, "
            'pass on_duplicate="ignore"; to replace it, pass on_duplicate="replace".'
            if is_job
            else f"{event_type!r} with the idempotency key {idempotency_key!r} was already emitted {existing}. "
            "If it may happen again, pass idempotency_key=outbox.UNIQUE or a key of its own; "
            'to get the one that exists, pass on_duplicate="ignore".'
        )


class EventNotStored(OutboxError, RuntimeError):
    """The database accepted the INSERT, stored no row, and shows no duplicate; the transaction can continue."""

    def __init__(self, event_type: str, idempotency_key: str, table: str) -> None:
        super().__init__(
            f"{event_type!r} with the idempotency key {idempotency_key!r} was not stored: the database inserted no row "
            f"into {table}, and shows no row with that key. Probable reasons: a BEFORE INSERT trigger on the table "
            "returns NULL, or row-level security hides the event that has the key. Remove the trigger, or change it to "
            f"return NEW; let this role see all rows, with a policy or with `ALTER TABLE {table} DISABLE ROW LEVEL "
            "SECURITY`."
        )


class TransactionRequired(OutboxError, RuntimeError):
    """The call needs an open transaction, and there is none (see OUTBOX_REQUIRE_TRANSACTION for emit)."""


class TransactionOpen(OutboxError, RuntimeError):
    """A function that delivers events was called inside an open transaction."""

    def __init__(self) -> None:
        super().__init__(
            "Events can't be delivered inside an open transaction: handlers would run before the commit, and "
            "the transaction would stay open while they do. Call this after the `with db.atomic():` block."
        )


class AsyncRequired(OutboxError, RuntimeError):
    """A blocking function was called, and the outbox's database is asynchronous."""

    def __init__(self, caller: str) -> None:
        name = caller.removeprefix("outbox.")
        super().__init__(
            f"{caller} was called by blocking code, and the outbox's database is asynchronous (playhouse.pwasyncio). "
            f"In a coroutine call `await outbox.a{name}(…)`, in the same task as `async with db.atomic():`. Blocking "
            "code that is run with `await db.run(…)` may call it as it is."
        )


class SchemaError(OutboxError, RuntimeError):
    """The outbox's tables are missing or older than this version needs, or the database can't store every text."""


class RegistrationError(OutboxError, ValueError):
    """A handler or destination can't be registered as asked."""


class NothingRegistered(RegistrationError):
    """A process that was started to deliver events has no handler and no other destination."""

    def __init__(self, modules: Sequence[str] = ()) -> None:
        where = f" (imported: {', '.join(modules)})" if modules else ""
        super().__init__(
            f"no handler is registered, and no other destination{where}, so a worker would have nothing to deliver "
            "to. Name the module that holds your @outbox.handler functions: `outbox worker your.module`, "
            "`dramatiq jobs your.module` or `outbox up your.module`. Or set OUTBOX_WEBHOOK_URL, OUTBOX_STREAM or "
            "another setting that names a destination."
        )


class VerificationError(OutboxError, ValueError):
    """A received webhook is not authentic: no valid signature, or a timestamp that is too far from now."""


class DecryptionError(OutboxError, ValueError):
    """A stored payload can't be decrypted. It was changed after it was encrypted, or was moved from another row."""


class EncryptionKeyMissing(DecryptionError):
    """This process lacks the key, or the version of the library, that can decrypt a payload; another may have it."""

    def __init__(self, message: str, key_id: str) -> None:
        self.key_id = key_id
        super().__init__(message)


class UnreadableEvent(OutboxError, ValueError):
    """A payload can't be read as the class that is declared for its event type. `path` says where, if it is known."""

    def __init__(self, message: str, path: str | None = None) -> None:
        self.path = path
        super().__init__(message)


def describe(error: BaseException) -> str:
    """Return the error as one text: `ValueError: its message`."""
    try:
        text = str(error)
    except Exception:
        text = "(its message could not be read)"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def as_text(error: object) -> str:
    """Return an error as text. It may be a text already, or an exception."""
    if isinstance(error, str):
        return error
    return describe(error) if isinstance(error, BaseException) else str(error)


def as_sentence(error: BaseException | str) -> str:
    """Return the error's message as one line with a full stop, to be followed by a sentence of ours.

    Messages of drivers have several lines, and end with a full stop, a question mark or nothing.
    """
    line = " ".join(str(error).split()) or type(error).__name__
    return line if line.endswith((".", "?", "!")) else f"{line}."


class Signal(OutboxError):
    """Raised by a handler to decide what happens to its event."""


class Reject(Signal):
    """Raised by a handler: trying again can't help, so the event fails now, without further attempts."""


class RetryLater(Signal):
    """Raised by a handler: try again after `after`, or after the usual backoff. Costs an attempt."""

    def __init__(self, after: timedelta | float | None = None, error: str = "the handler asked for a retry") -> None:
        if not isinstance(after, timedelta | int | float | None):
            raise TypeError(f"RetryLater(after) takes a timedelta or seconds, not {after!r}; the text is error=…")
        self.after = timedelta(seconds=after) if isinstance(after, int | float) else after
        super().__init__(error)


class Unavailable(Signal):
    """The destination could not be reached: try again later. Costs no attempt.

    A handler raises it; a destination may also return it as the outcome of an event. `error` is a text, or the
    exception that is the cause. `http_status` is that of the response, if there was one.
    """

    def __init__(
        self,
        error: str | BaseException = "unavailable",
        *,
        not_before: datetime | timedelta | None = None,
        http_status: int | None = None,
    ) -> None:
        if not isinstance(not_before, datetime | timedelta | None):
            raise TypeError(f"Unavailable(not_before=…) takes a datetime or a timedelta, not {not_before!r}")
        self.error = as_text(error)
        self.exception = error if isinstance(error, BaseException) else None
        self.not_before = not_before
        self.http_status = http_status
        super().__init__(self.error)


class NewerEvent(Unavailable):
    """The event has a version that this process does not know yet: a worker with newer code can read it."""

    def __init__(self, event_type: str, version: int, latest: int) -> None:
        super().__init__(
            f"{event_type!r} version {version} is newer than this code, which knows version {latest}: it waits for a "
            "worker with newer code"
        )
