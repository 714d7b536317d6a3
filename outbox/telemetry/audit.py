"""Write and read the audit log: which operator did what, to which events, and how it ended.

An entry is a row of `outbox_audit`; the ids of the changed events are in `outbox_audit_batch`. The logger
`outbox.audit` also logs when an action begins and ends: a user who can change the table can't change the log.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import peewee

from outbox.errors import OutboxError
from outbox.storage.connection_errors import is_lock_timeout
from outbox.storage.dialect import Dialect
from outbox.storage.ids import as_uuid, uuid7
from outbox.storage.operator_models import Audit, AuditBatch
from outbox.telemetry import logs
from outbox.text import clean_json, is_storable, printable, shorten

LISTED = 50
# How many batches of ids are read at a time.
BATCHES = 10
NAME_LENGTH = 255
DONE, INTERRUPTED = "done", "interrupted"

logger = logging.getLogger("outbox.audit")


@dataclass(frozen=True, slots=True)
class Operator:
    """The person or program that runs an action. `name` is from the dashboard's authentication or the operating system.

    `claimed` is the name that the person's environment gives, if it differs. `via` says where the action was started.
    """

    name: str
    claimed: str | None = None
    via: str | None = None

    def columns(self) -> tuple[str, str | None, str | None]:
        """Return the name, the claimed name and `via`, as every database can store them."""
        return _name(self.name), _optional(self.claimed), _optional(self.via)


class Interrupted(Exception):
    """Thrown into an action that has to stop after its current batch. The text says what interrupts it."""


class AuditEntry:
    """The audit entry of one action that is running."""

    def __init__(self, dialect: Dialect, operator: Operator, action: str) -> None:
        self.affected = 0
        # The operator who has asked the action to stop.
        self.stop_by: str | None = None
        self._dialect = dialect
        self._operator = operator
        self._action = action
        self._id = uuid7()
        self._batches = 0

    @property
    def id(self) -> UUID:
        return self._id

    def begin(
        self,
        filters: Mapping[str, Any],
        parameters: Mapping[str, Any] | None = None,
        *,
        total: int | None = None,
        last_id: UUID | None = None,
    ) -> None:
        """Write the entry, before the first change.

        For an action on many events, also pass how many match, and the last one that it will read.
        """
        filters, parameters = clean_json(filters), clean_json(parameters) if parameters else None
        given = None if parameters is None else json.dumps(parameters)
        key = self._dialect.id(self._id)
        last = None if last_id is None else self._dialect.id(last_id)
        values = (key, *self._operator.columns(), self._action, json.dumps(filters), given, total, last)
        with self._dialect.lock_limit():
            self._dialect.run(self._dialect.statements.audit_begin, values)
        self._log("begins", filters=filters, parameters=parameters)

    def add(self, ids: Sequence[UUID], position: UUID | None = None) -> None:
        """Add the events that one batch has changed, and the last event that it has read.

        Call it in the transaction that changed them, so that the entry is right even if the action is interrupted.
        """
        if not ids and position is None:
            return
        dialect, key = self._dialect, self._dialect.id(self._id)
        at = None if position is None else dialect.id(position)
        found = dialect.run(dialect.statements.audit_add, (len(ids), at, key)).fetchone()
        self.stop_by = found[0] if found else None  # the clean-up may have deleted the entry of a very long action
        if ids:
            dialect.run(dialect.statements.audit_batch, (key, self._batches, json.dumps([str(id) for id in ids])))
            self._batches += 1
            self.affected += len(ids)

    def end(self, outcome: str = DONE, cause: str | None = None) -> None:
        """Write how the action ended; `cause` is what interrupted it."""
        with self._dialect.lock_limit():
            self._dialect.run(self._dialect.statements.audit_end, (outcome, cause, self._dialect.id(self._id)))
        self._log("ends", outcome=outcome, cause=cause, affected=self.affected)

    def interrupt(self, cause: str, *, in_callers_transaction: bool) -> None:
        """Write that the action was interrupted, if the database can be used; log it in any case."""
        dialect = self._dialect
        try:
            if dialect.in_transaction and not in_callers_transaction:
                dialect.discard_connection()  # a signal in the middle of a COMMIT can leave the transaction open
            with dialect.connection():
                self.end(INTERRUPTED, cause)
        except (peewee.PeeweeException, OutboxError) as error:
            logger.warning(
                "Could not write the end of the audit entry %s (%s): it looks as if the action were still running.",
                self._id,
                type(error).__name__,
            )
            self._log("ends", outcome=INTERRUPTED, cause=cause, affected=self.affected)

    def _log(self, what: str, **values: Any) -> None:
        name, claimed, via = self._operator.columns()
        given = {"who": name, "claimed": claimed, "via": via} | values
        shown = {key: value for key, value in given.items() if value is not None}
        text = ", ".join(f"{key}={_as_text(value)}" for key, value in shown.items())
        extra = logs.fields(audit_id=str(self._id), action=self._action, **shown)
        logger.info("%s %s: %s, id=%s", self._action, what, text, self._id, extra=extra)


class NoEntry(AuditEntry):
    """Writes nothing: the application makes the change, not an operator."""

    def __init__(self) -> None:
        self.affected = 0
        self.stop_by = None

    def add(self, ids: Sequence[UUID], position: UUID | None = None) -> None:
        pass


@contextmanager
def record(
    dialect: Dialect,
    operator: Operator | None,
    action: str,
    filters: Mapping[str, Any],
    parameters: Mapping[str, Any] | None = None,
    *,
    total: int | None = None,
    last_id: UUID | None = None,
) -> Iterator[AuditEntry]:
    """Write an entry before the first change, and how the action ended after the last one.

    An action that raises, or that is stopped, ends as interrupted. An entry without an end belongs to an action that is
    still running, or to a process that was killed. If `operator` is None, the application makes the change, and nothing
    is written.
    """
    if operator is None:
        yield NoEntry()
        return
    entry = AuditEntry(dialect, operator, action)
    in_callers_transaction = dialect.in_transaction
    entry.begin(filters, parameters, total=total, last_id=last_id)
    with ending(entry, in_callers_transaction=in_callers_transaction):
        yield entry


@contextmanager
def ending(entry: AuditEntry, *, in_callers_transaction: bool = False) -> Iterator[None]:
    """Write the end of an entry: the action has ended with the block, or an error in the block has interrupted it."""
    try:
        yield
    except BaseException as error:
        entry.interrupt(_cause(error), in_callers_transaction=in_callers_transaction)
        raise
    entry.end()


def note(dialect: Dialect, operator: Operator, action: str, details: Mapping[str, Any]) -> None:
    """Write an entry for a change that is made at once; call this in the transaction of the change."""
    entry = AuditEntry(dialect, operator, action)
    entry.begin(details)
    entry.end()


def request_stop(dialect: Dialect, id: UUID, operator: Operator) -> bool:
    """Ask an action on many events to stop after its current batch; return whether it was running."""
    with dialect.lock_limit():
        return bool(dialect.run(dialect.statements.audit_stop, (operator.columns()[0], dialect.id(id))).rowcount)


def latest(dialect: Dialect, size: int = LISTED) -> list[Audit]:
    """Return the latest entries, newest first."""
    with dialect.lock_limit():
        return dialect.select(Audit.select().order_by(Audit.id.desc()).limit(size))


def find(dialect: Dialect, id: UUID) -> Audit | None:
    """Return the entry with this id, if there is one."""
    with dialect.lock_limit():
        found: list[Audit] = dialect.select(Audit.select().where(Audit.id == id))
    return found[0] if found else None


def changed_ids(dialect: Dialect, id: UUID, most: int | None = None) -> Iterator[UUID]:
    """Yield the ids of the events that an action has changed, in the order of the changes; at most `most`."""
    query = AuditBatch.select().where(AuditBatch.audit_id == id).order_by(AuditBatch.number).limit(BATCHES)
    last = -1
    with dialect.connection():
        while batches := _batches(dialect, query.where(AuditBatch.number > last)):
            ids = [as_uuid(each) for batch in batches for each in batch.ids]
            yield from ids[:most]
            if most is not None:
                most -= len(ids)
                if most <= 0:
                    return
            last = batches[-1].number


def _batches(dialect: Dialect, query: Any) -> list[AuditBatch]:
    with dialect.lock_limit():
        return dialect.select(query)


def _cause(error: BaseException) -> str:
    """Return what ended an action early. An error's text is left out, because it may quote events."""
    match error:
        case Interrupted():
            return shorten(str(error), NAME_LENGTH)
        case KeyboardInterrupt():
            return "SIGINT"
        case GeneratorExit():
            return "the caller stopped it"
        case _ if is_lock_timeout(error):
            return "another session held a lock"
    return type(error).__name__


def _as_text(value: object) -> str:
    return printable(json.dumps(value, ensure_ascii=False, default=str))


def _name(text: str) -> str:
    cleaned = text if is_storable(text) else clean_json(text)
    return shorten(cleaned, NAME_LENGTH)


def _optional(text: str | None) -> str | None:
    return None if text is None else _name(text)
