"""Erase what events hold about a subject, a tenant or an aggregate: payloads, headers, errors, and attempts.

The rows stay, with their ids, types, aggregates and times: receivers' inboxes, counts and the order of keys need them.
`erase` is an action on many events, like those of `actions.py`: its audit entry records how far it is, and it can be
stopped. The entry must not name the person, so it stores a digest of the filter. Therefore an erasure can't be resumed
by its id. To erase the rest, call `erase` again: events that were erased no longer match.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from outbox.errors import OutboxError, SettingsError
from outbox.operations import apply_action
from outbox.operations.actions import Action, Rows
from outbox.operations.apply_action import BATCH, NotifyAfterCommit
from outbox.operations.filters import Condition, Filter
from outbox.storage import progress
from outbox.storage.attempts import forget_attempts
from outbox.storage.dialect import Dialect
from outbox.storage.ids import as_uuid
from outbox.storage.models import DELIVERED, FAILED, PENDING, SENDING, OutboxEvent
from outbox.storage.status import has_ended, is_unfinished
from outbox.storage.waiting_events import release_keys
from outbox.telemetry.audit import Interrupted, Operator

# What happens to events that have not ended: "refuse" erases nothing at all; "deliver" leaves them to the workers and
# erases the others; "drop" ends them as failed, undelivered, and erases them.
REFUSE, DELIVER, DROP = PENDING_CHOICES = ("refuse", "deliver", "drop")

NAME = "erase"
# The fields of a filter that can select what is erased, and those whose values the audit log does not repeat.
SELECTING = frozenset(("subject", "tenant_id", "aggregate_type", "aggregate_id"))
HIDDEN = ("subject", "tenant_id", "aggregate_id")
DIGEST = "sha256"
_SALT_BYTES, _DIGEST_LENGTH = 8, 32

CONSEQUENCES = (
    "Payloads, headers, errors, correlation ids, subjects and attempts are blanked. This can't be undone.",
    "The events can't be retried or replayed any more.",
    "Receivers keep what was delivered to them; logs, archives and backups are not changed.",
)


class UnfinishedEvents(OutboxError):
    """Some of the events to erase have not ended, and the operator has not said what to do with them."""


@dataclass(frozen=True, slots=True)
class Preview:
    """What `erase` would find now."""

    # Events that have ended, and still have their content.
    ended: int
    # Events that wait for their first or next attempt, and events that workers are delivering right now.
    waiting: int
    being_delivered: int

    @property
    def unfinished(self) -> int:
        return self.waiting + self.being_delivered


def preview(dialect: Dialect, filter: Filter) -> Preview:
    """Return how many events `erase` would change; raise SettingsError if the filter can't be erased by."""
    _check(filter)
    with dialect.lock_limit():
        now = dialect.now()
        leased = OutboxEvent.lease_until > now
        matching = [*filter.conditions(dialect.database), OutboxEvent.erased_at.is_null()]
        unfinished = _count(dialect, [*matching, *is_unfinished()])
        being_delivered = _count(dialect, [*matching, *is_unfinished(), leased])
        ended = _count(dialect, [*matching, *has_ended()])
    return Preview(ended, unfinished - being_delivered, being_delivered)


def erase(
    dialect: Dialect,
    notify: NotifyAfterCommit,
    filter: Filter,
    *,
    operator: Operator | None,
    pending: str = REFUSE,
    keep_keys: bool = False,
    per_second: float | None = None,
    batch_size: int = BATCH,
    sleep: Callable[[float], object] = time.sleep,
) -> Generator[int]:
    """Erase the content of all events that match now, oldest first. After each batch, yield how many were erased.

    - `filter`: `Filter(subject="user:7")`, or a tenant_id, or an aggregate_type with an aggregate_id; or several of
      them, all of which must match. Anything else raises SettingsError.
    - `operator` is written to the audit log; None writes no entry.
    - `pending`: what to do with events that have not ended. "refuse" raises UnfinishedEvents if there are any, and
      nothing is erased. "deliver" leaves them to the workers: erase again when they have ended. "drop" ends them as
      failed and erases them; one that a worker is delivering right now is left, too.
    - `keep_keys`: don't replace idempotency keys that the application has chosen.

    As with `apply_action.apply`: throw `audit.Interrupted` into it to stop it after a batch; it raises that by itself
    when an operator asks it to stop (`bulk_actions.stop`). Rows that another transaction has locked are skipped: call
    `preview` afterwards to see what is left.
    """
    if pending not in PENDING_CHOICES:
        raise SettingsError(f"pending must be one of {', '.join(PENDING_CHOICES)}, not {pending!r}.")
    found = preview(dialect, filter)
    if pending == REFUSE and found.unfinished:
        raise UnfinishedEvents(refusal(found))
    return _erase(
        dialect,
        notify,
        filter,
        _Eraser(drop=pending == DROP, keep_keys=keep_keys),
        operator=operator,
        parameters={"pending": pending} | ({"keep_keys": True} if keep_keys else {}),
        per_second=per_second,
        batch_size=batch_size,
        sleep=sleep,
    )


def refusal(found: Preview) -> str:
    """Return why nothing is erased while events have not ended, and what to do."""
    have = "event has" if found.unfinished == 1 else "events have"
    return (
        f"{found.unfinished:,} {have} not ended, so nothing was erased. Deliver them first (pending=deliver "
        "erases the others, run it again when they have ended), or drop them (pending=drop ends them as failed, "
        "undelivered, and erases them)."
    )


def _erase(
    dialect: Dialect,
    notify: NotifyAfterCommit,
    filter: Filter,
    eraser: _Eraser,
    *,
    parameters: Mapping[str, Any],
    **options: Any,
) -> Generator[int]:
    action = Action(
        name=NAME,
        label="Erase",
        applies_to="have ended",
        done="erased",
        consequences=CONSEQUENCES,
        job_consequences=CONSEQUENCES,
        statuses=(DELIVERED, FAILED, PENDING, SENDING) if eraser.drop else (DELIVERED, FAILED),
        conditions=lambda: eraser.conditions(dialect),
        run=eraser.run,
        # Those that wait behind a dropped event of their ordering key.
        makes_due=eraser.drop,
        is_dangerous=True,
        parameters=parameters,
    )
    try:
        yield from apply_action.apply(dialect, notify, action, filter, audited=hidden(filter), **options)
    except Interrupted:
        eraser.finish(dialect)
        raise
    eraser.finish(dialect)


class _Eraser:
    """Erases batches of rows."""

    def __init__(self, *, drop: bool, keep_keys: bool) -> None:
        self.drop = drop
        self._keep_keys = keep_keys
        self._previous: Sequence[UUID] = ()

    def conditions(self, dialect: Dialect) -> list[Condition]:
        not_erased = OutboxEvent.erased_at.is_null()
        if not self.drop:
            return [not_erased, *has_ended()]
        with dialect.lock_limit():
            now = dialect.now()
        return [not_erased, OutboxEvent.lease_until.is_null() | (OutboxEvent.lease_until <= now)]

    def run(self, dialect: Dialect, rows: Rows) -> list[UUID]:
        """Erase a batch; return the ids of the rows that still had to be erased."""
        erased = self._run(dialect, None, [row.id for row in rows if row.progress is None])
        for row in rows:
            if row.progress is not None:
                erased += self._run(dialect, progress.without_errors(row.progress), [row.id])
        # A worker adds attempts just after it has settled. It adds none to an event that is erased, unless its
        # statement began before: those are deleted with the next batch.
        forget_attempts(dialect, [*erased, *self._previous])
        self._previous = erased
        if self.drop:
            release_keys(dialect, {row.ordering_key for row in rows if row.ordering_key is not None})
        return erased

    def finish(self, dialect: Dialect) -> None:
        """Delete the attempts that workers have added meanwhile to the last batch."""
        with dialect.lock_limit():
            forget_attempts(dialect, self._previous)

    def _run(self, dialect: Dialect, progress_text: str | None, ids: Sequence[UUID]) -> list[UUID]:
        if not ids:
            return []
        parameters = (progress_text, self._keep_keys, dialect.ids(ids), self.drop)
        return [as_uuid(id) for (id,) in dialect.run(dialect.statements.erase, parameters).fetchall()]


def hidden(filter: Filter) -> dict[str, Any]:
    """Return the filter as the audit log has it: with digests of what could name a person.

    Each digest has a salt of its own, so that entries can't be compared with one another. A person who knows the value
    can check whether an entry is about it (`is_about`). A short value can be found by trying all values.
    """
    values = filter.to_json()
    return {name: _digest(value) if name in HIDDEN else value for name, value in values.items()}


def is_about(filters: Mapping[str, Any], value: str) -> bool:
    """Return whether the filter of an erasure's audit entry names this subject, tenant or aggregate's id."""
    found = [filters.get(name) for name in HIDDEN]
    return any(isinstance(text, str) and _is_digest_of(text, value) for text in found)


def _digest(value: str, salt: str | None = None) -> str:
    salt = secrets.token_hex(_SALT_BYTES) if salt is None else salt
    digest = hashlib.sha256(f"{salt}:{value}".encode()).hexdigest()[:_DIGEST_LENGTH]
    return f"{DIGEST}:{salt}:{digest}"


def _is_digest_of(text: str, value: str) -> bool:
    kind, _, rest = text.partition(":")
    return kind == DIGEST and hmac.compare_digest(_digest(value, rest.partition(":")[0]), text)


def _check(filter: Filter) -> None:
    """Raise SettingsError unless the filter names a subject, a tenant or one aggregate, and nothing else."""
    given = filter.to_json().keys()
    if not given:
        raise SettingsError("Name what to erase: a subject, a tenant, or an aggregate with its id.")
    if given - SELECTING:
        raise SettingsError(f"Events can't be erased by {', '.join(sorted(given - SELECTING))}.")
    if ("aggregate_type" in given) != ("aggregate_id" in given):
        raise SettingsError("Name one aggregate, with its id: Order:7.")


def _count(dialect: Dialect, conditions: list[Condition]) -> int:
    return dialect.count(OutboxEvent.select(OutboxEvent.id).where(*conditions))
