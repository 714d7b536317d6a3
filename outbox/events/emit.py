"""emit: validate the event, insert it through the caller's own connection, notify a worker after the commit.

A single event needs no savepoint: its INSERT reports a duplicate by returning no row, not by an error. So the caller's
transaction can continue after a duplicate.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from outbox.encryption.cipher import Cipher
from outbox.errors import DuplicateEvent, EventNotStored, InvalidEvent, TenantMismatch, TransactionRequired
from outbox.events.encrypted_row import decrypted_if_possible, encrypted
from outbox.events.event_types import event_types
from outbox.events.job_row import shown_key
from outbox.events.new_event import NewEvent, OnDuplicate
from outbox.events.stored_event import stored_event
from outbox.events.validate import Draft, validate
from outbox.notify.after_commit import AfterCommit
from outbox.notify.notifier import Notifier
from outbox.settings import Settings
from outbox.storage.async_database import is_async, is_event_loop_running
from outbox.storage.dialect import Dialect, Row
from outbox.storage.models import EVENT, JOB, OutboxEvent
from outbox.telemetry.counters import Counters

logger = logging.getLogger(__name__)

# How often the INSERT is repeated if it reports a duplicate, but no event with that key is found.
INSERT_TRIES = 3

STRICT = "strict"


class Emitter:
    """Stores events for one outbox.

    `start_reports` is called after each emit: a process that emits reports itself and its counts from then on.
    """

    def __init__(
        self,
        dialect: Dialect,
        settings: Settings,
        notifier: Notifier,
        counters: Counters,
        start_reports: Callable[[], None],
        *,
        cipher: Cipher | None,
    ) -> None:
        self._dialect = dialect
        self._settings = settings
        self._notifier = notifier
        self._counters = counters
        self._start_reports = start_reports
        # What decrypts, and, unless new rows are stored in plain text, what encrypts.
        self._cipher = cipher
        self._encrypting = cipher if cipher is not None and cipher.encrypts else None
        self._committed: AfterCommit[int] = AfterCommit(lambda _, count: counters.add(emitted=count))
        self._committed_jobs: AfterCommit[list[str]] = AfterCommit(lambda _, actors: _count_jobs(counters, actors))
        self._warned_of_no_transaction = False
        self._warned_of_event_loop = is_async(dialect.database) or not settings.warn_in_event_loop

    def emit(self, event: NewEvent, on_duplicate: OnDuplicate) -> OutboxEvent:
        """Store one event. It exists if and only if the caller's transaction commits."""
        if type(event.event_type) is not str:
            event = from_object(event)
        draft = validate(event, self._settings)
        if event.ordered == STRICT:
            self._dialect.check_caller("emit")
            self._lock_keys([draft])
        return self.store(draft, on_duplicate)

    def store(self, draft: Draft, on_duplicate: OnDuplicate, *, caller: str = "emit") -> OutboxEvent:
        """Store one row of any kind. `caller` is the function that the application has called, for messages."""
        _check_on_duplicate(on_duplicate)
        self._check_transaction(caller, "the event" if draft.kind == EVENT else "the job")
        stored = self._stored(draft, on_duplicate, self._insert(draft))
        self._notifier.notify_after_commit(self._dialect)
        if stored.id is draft.id:
            if draft.kind == JOB:
                self._count_job_after_commit(draft.event_type)
            else:
                self._count_after_commit(1)
        return stored

    def emit_many(self, events: Iterable[NewEvent], on_duplicate: OnDuplicate) -> list[OutboxEvent]:
        """Store many events, all or none, with one round trip per thousand; return them in the caller's order."""
        _check_on_duplicate(on_duplicate)
        new = list(events)
        drafts = [self._validate_one_of_many(number, event) for number, event in enumerate(new)]
        if not drafts:
            return []
        if on_duplicate == "raise":
            _refuse_equal_keys(drafts)
        self._check_transaction("emit_many", "the event")
        with self._dialect.atomic():
            if strict := [draft for draft, event in zip(drafts, new, strict=True) if event.ordered == STRICT]:
                self._lock_keys(strict)
            rows = self._dialect.insert_many(self._encrypted(drafts))
            stored = [self._stored(draft, on_duplicate, row) for draft, row in zip(drafts, rows, strict=True)]
            self._notifier.notify_after_commit(self._dialect)
        self._count_after_commit(sum(event.id is draft.id for event, draft in zip(stored, drafts, strict=True)))
        return stored

    def _lock_keys(self, drafts: Iterable[Draft]) -> None:
        """Acquire the locks of the ordering keys. They are held until the caller's transaction ends."""
        if not self._dialect.in_transaction:
            raise TransactionRequired(
                'ordered="strict" needs a transaction: the lock on the ordering key is held until the commit, so that '
                "events commit in the order of their numbers. Call emit inside `with db.atomic():`."
            )
        self._dialect.lock_keys(draft.ordering_key for draft in drafts if draft.ordering_key is not None)

    def _validate_one_of_many(self, number: int, event: NewEvent) -> Draft:
        try:
            return validate(event if type(event.event_type) is str else from_object(event), self._settings)
        except InvalidEvent as error:
            raise InvalidEvent(f"event {number}: {error}") from None

    def _stored(self, draft: Draft, on_duplicate: OnDuplicate, row: Row | None) -> OutboxEvent:
        """Return the event that the table holds, given what the INSERT of `draft` returned."""
        for _ in range(INSERT_TRIES):
            if row is not None:
                return stored_event(draft, *row)
            if on_duplicate == "replace":
                replaced = self._replace(draft)
                if replaced is not None:
                    id, *stored = replaced
                    return stored_event(draft, *stored, id=id)
                # It was attempted, has ended, was deleted meanwhile, or belongs to another tenant.
                existing = self._existing(draft, on_duplicate)
                if existing is not None:
                    _refuse_other_tenant(draft, existing)
                self._dialect.set_aside(draft)
                row = self._insert(draft)
                continue
            existing = self._existing(draft, on_duplicate)
            if existing is not None:
                self._counters.add(duplicates=1)
                if on_duplicate == "ignore":
                    _refuse_other_kind(draft, existing)
                    _refuse_other_tenant(draft, existing)
                    return existing
                raise DuplicateEvent(draft.event_type, _key(draft), existing.id, is_job=draft.kind == JOB)
            # The other event was deleted between the two statements, so its key is free again.
            row = self._insert(draft)
        if row is None:
            raise EventNotStored(draft.event_type, _key(draft), self._dialect.tables.event)
        return stored_event(draft, *row)

    def _insert(self, draft: Draft) -> Row | None:
        return self._dialect.insert(draft if self._encrypting is None else encrypted(draft, self._encrypting, draft.id))

    def _encrypted(self, drafts: list[Draft]) -> list[Draft]:
        cipher = self._encrypting
        return drafts if cipher is None else [encrypted(draft, cipher, draft.id) for draft in drafts]

    def _replace(self, draft: Draft) -> Row | None:
        """Replace the content of the untried row with the same key; return what `Dialect.replace` returns.

        A ciphertext is bound to the id of its row. So the row is looked up first, and again if it is deleted meanwhile.
        """
        if self._encrypting is None:
            return self._dialect.replace(draft)
        for _ in range(INSERT_TRIES):
            id = self._dialect.find_untried(draft)
            if id is None:
                break
            replaced = self._dialect.replace(encrypted(draft, self._encrypting, id), id)
            if replaced is not None:
                return replaced
        return None

    def _existing(self, draft: Draft, on_duplicate: OnDuplicate) -> OutboxEvent | None:
        """Return the event of the same type and key, with the columns that are needed: "ignore" needs all of them."""
        event = OutboxEvent
        columns: dict[str, list[Any]] = {
            "raise": [event.id],
            "replace": [event.id, event.tenant_id],
            "ignore": [],
        }
        same_key = (event.event_type == draft.event_type) & (event.idempotency_key == draft.idempotency_key)
        found: list[OutboxEvent] = self._dialect.select(event.select(*columns[on_duplicate]).where(same_key))
        if not found or on_duplicate != "ignore":
            return found[0] if found else None
        return decrypted_if_possible(found[0], self._cipher)

    def _count_after_commit(self, new: int) -> None:
        """Count the events after the commit. Events of a savepoint that is rolled back are counted, too."""
        try:
            self._committed.add(self._dialect, new)
        except ValueError:  # Peewee does not know when a `manual_commit` block commits
            self._counters.add(emitted=new)
        if self._notifier.runs_in_background:
            self._start_reports()

    def _count_job_after_commit(self, actor: str) -> None:
        """Count a job among the events, and by its actor, after the commit."""
        try:
            self._committed_jobs.add(self._dialect, [actor])
        except ValueError:  # as above
            _count_jobs(self._counters, [actor])
        if self._notifier.runs_in_background:
            self._start_reports()

    def _check_transaction(self, caller: str, what: str) -> None:
        """Raise an error outside a transaction if the settings require one; otherwise log a warning, once.

        The same for a call that would block the event loop on which it runs.
        """
        self._dialect.check_caller(caller)
        if not self._warned_of_event_loop and is_event_loop_running():
            self._warn_of_event_loop(caller)
        required = self._settings.require_transaction
        if (self._warned_of_no_transaction and not required) or self._dialect.in_transaction:
            return
        if required:
            raise TransactionRequired(f"{self._no_transaction(caller, what)} Or set OUTBOX_REQUIRE_TRANSACTION=false.")
        self._warned_of_no_transaction = True
        logger.warning(
            "%s OUTBOX_REQUIRE_TRANSACTION=true makes this an error. This warning is logged only once.",
            self._no_transaction(caller, what),
        )

    def _warn_of_event_loop(self, caller: str) -> None:
        self._warned_of_event_loop = True
        name = caller.removeprefix("outbox.")
        logger.warning(
            "%s was called on an event loop, and the outbox's database (%s) is blocking: every other task of the loop "
            "waits for the database meanwhile. Give outbox.configure an asynchronous database of playhouse.pwasyncio "
            "and call `await outbox.a%s(…)`, or run the transaction in a thread. OUTBOX_WARN_IN_EVENT_LOOP=false "
            "silences this warning, which is logged only once.",
            caller,
            type(self._dialect.database).__name__,
            name,
        )

    def _no_transaction(self, caller: str, what: str) -> str:
        """Return what a call outside a transaction means, what causes it, and what to do about it."""
        return (
            f"{caller} was called outside a transaction on {self._dialect.place}: {what} is committed at once, and "
            "stays even if the change beside it is rolled back. Either no transaction was open, or one is open "
            f"on another Peewee database object than the outbox's, and so on another connection. Call {caller} inside "
            "`with db.atomic():`, and give the outbox the same object: `outbox.configure(database=db)`."
        )


def from_object(event: NewEvent) -> NewEvent:
    """Return the event of an object of a declared class (`outbox.event`), or of a text that is no plain `str`."""
    if isinstance(event.event_type, str):
        return event
    event_type, payload, headers = event_types.typed(event.event_type, event.payload, event.headers)
    return event._replace(event_type=event_type, payload=payload, headers=headers)


def _count_jobs(counters: Counters, actors: list[str]) -> None:
    counters.add(emitted=len(actors))
    counters.add_jobs("jobs_stored", actors)


def _check_on_duplicate(on_duplicate: str) -> None:
    if on_duplicate not in ("raise", "ignore", "replace"):
        raise InvalidEvent(f'on_duplicate must be "raise", "ignore" or "replace", not {on_duplicate!r}.')


def _key(draft: Draft) -> str:
    """Return the idempotency key as the application knows it."""
    return shown_key(draft.idempotency_key) if draft.kind == JOB else draft.idempotency_key


def _refuse_other_kind(draft: Draft, existing: OutboxEvent) -> None:
    """Raise InvalidEvent if an event and a job have the same name and the same key: neither is the other's duplicate.

    That is only possible if the event's key begins with the prefix of jobs' keys.
    """
    if existing.kind != draft.kind:
        raise InvalidEvent(
            f"The idempotency key {_key(draft)!r} of {draft.event_type!r} belongs to a row of another kind: "
            f"{existing.kind} {existing.id}. Choose another key."
        )


def _refuse_other_tenant(draft: Draft, existing: OutboxEvent) -> None:
    """Raise TenantMismatch if the event with this key has another tenant, or only one of the two has a tenant.

    Keys are unique for all tenants together. Without this check one tenant would be given the payload of another, or
    would replace it.
    """
    if existing.tenant_id != draft.tenant_id:
        raise TenantMismatch(draft.event_type, _key(draft), draft.tenant_id, existing.id, is_job=draft.kind == JOB)


def _refuse_equal_keys(drafts: Iterable[Draft]) -> None:
    """Raise DuplicateEvent if two of the events have the same type and key.

    The table would find them too, but the error would then name an event that is about to be rolled back.
    """
    seen: set[tuple[str, str]] = set()
    for draft in drafts:
        key = (draft.event_type, draft.idempotency_key)
        if key in seen:
            raise DuplicateEvent(*key, existing_id=None)
        seen.add(key)
