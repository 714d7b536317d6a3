"""Call the handlers for one entry, each in a transaction with the inbox, and determine the outcome of the entry.

`Consumer` calls `EntryProcessor.process` for each entry that it has read, and writes the outcome to the source
(`settle.py`).
"""

from __future__ import annotations

import contextlib
import logging

import peewee

from outbox.consumer.counts import Counts
from outbox.consumer.database_outage import is_outage
from outbox.consumer.delivery_count import DeliveryCount
from outbox.consumer.entry import Entry, event_of
from outbox.consumer.entry_outcome import EntryOutcome, Parked, Processed, Redeliver
from outbox.consumer.handler_session import DatabaseServer, HandlerSession
from outbox.destinations import delivery_span
from outbox.destinations.handler import CALL_ERRORS, Handler
from outbox.destinations.outcome import DELIVERED_OUTCOME, Delivered, Failed, Outcome, Retry
from outbox.destinations.registry import Registry
from outbox.errors import InvalidMessage, SchemaError, Unavailable, describe
from outbox.events.event import Event
from outbox.inbox.inbox import Inbox
from outbox.inbox.once_decorator import HANDLER_NAME_ATTRIBUTE
from outbox.storage.dialect import Dialect
from outbox.telemetry import tracing
from outbox.text import one_line

logger = logging.getLogger(__name__)

SESSION_ENDED = (
    "the database server ended the handler's session and keeps running ({error}). If the handler takes longer than "
    "idle_in_transaction_session_timeout or transaction_timeout allow, move the slow work out of it"
)


class DatabaseLost(Exception):
    """The database is unavailable, so all other handlers and entries would fail as well."""


class DeliveriesExhausted(Exception):
    """The entry was delivered `max_deliveries` times, and each consumer crashed or stopped responding."""


class EntryProcessor:
    """Calls the handlers of a registry for entries.

    `dialect` is for the outbox's database, which handlers may use. The inbox may be in another database.
    """

    def __init__(
        self,
        inbox: Inbox,
        dialect: Dialect,
        registry: Registry,
        *,
        max_deliveries: int,
        max_payload_bytes: int,
        counts: Counts,
    ) -> None:
        self._inbox = inbox
        self._dialect = dialect
        self._registry = registry
        self._max_deliveries = max_deliveries
        self._max_payload_bytes = max_payload_bytes
        self._counts = counts
        self._server = DatabaseServer(inbox.dialect)
        self._deliveries = DeliveryCount(inbox, max_deliveries)

    def process(self, entry: Entry) -> tuple[Entry, EntryOutcome]:
        """Call every handler that wants the entry; return the entry, with its deliveries counted, and its outcome."""
        try:
            event = event_of(entry, self._max_deliveries, self._max_payload_bytes)
        except InvalidMessage as error:
            return entry, Parked(str(error))
        try:
            entry = self._deliveries.begin(entry, event)
        except peewee.PeeweeException as error:
            return entry, Redeliver(one_line(describe(error)), database_lost=is_outage(error), begun=False)
        event.attempt = entry.deliveries
        outcome = self._process(event, entry)
        if isinstance(outcome, Redeliver) and not outcome.is_counted and not outcome.database_lost:
            with contextlib.suppress(peewee.PeeweeException):  # then this delivery counts
                self._deliveries.undo(entry, event)
        return entry, outcome

    def _process(self, event: Event, entry: Entry) -> EntryOutcome:
        """Call every handler that wants the event; return the outcome of the entry."""
        handlers = [each for each in self._registry.wanting(event.event_type) if isinstance(each, Handler)]
        if not handlers:
            logger.debug("no handler here wants %r, so its entry is acknowledged", event)
        try:
            outcomes = {handler.name: self._call_traced(handler, event, entry) for handler in handlers}
        except DatabaseLost as lost:
            return Redeliver(str(lost), database_lost=True)
        return _outcome_of_entry(event, outcomes)

    def _call_traced(self, handler: Handler, event: Event, entry: Entry) -> Outcome:
        """Call the handler, in a span if deliveries are traced."""
        tracer = tracing.tracer()
        if tracer is None:
            return self._call_once(handler, event, entry)
        outcome: Outcome = Retry("interrupted")  # the span's, if an exception leaves the call
        delivery_span.start_span(tracer, event, handler)
        try:
            outcome = self._call_once(handler, event, entry)
        finally:
            delivery_span.end_span(event, outcome)
        return outcome

    def _call_once(self, handler: Handler, event: Event, entry: Entry) -> Outcome:
        """Call the handler, unless it has processed the event already according to the inbox; return its outcome.

        The handler's writes and the inbox's row are in one transaction, so both are committed or neither.
        """
        session = HandlerSession(self._inbox.dialect)
        try:
            with self._dialect.connection(), self._inbox.claim(event.id, inbox_name(handler)) as first:
                if not first:
                    self._counts.skipped += 1
                else:
                    with session.watched():
                        _call(handler, event, entry)
        except SchemaError:
            raise  # the inbox's table is missing, so every entry would fail: the consumer ends
        except DeliveriesExhausted:
            return Failed(
                f"delivered {entry.deliveries} times, and each time its consumer crashed or stopped responding"
            )
        except CALL_ERRORS as error:
            if not is_outage(error):
                return handler.outcome_of(event, error)
            text = one_line(describe(error))
            if self._server.ended(session, error):
                return Retry(SESSION_ENDED.format(error=text))
            raise DatabaseLost(text) from error
        return DELIVERED_OUTCOME


def inbox_name(handler: Handler) -> str:
    """Return the name under which the inbox remembers the handler.

    A function decorated with `outbox.inbox.once` claims the event again inside the call, under its own name. If that is
    the handler's name, another name is returned here. Otherwise the function would find the consumer's claim and skip
    the event.
    """
    claims_same_name = getattr(handler.function, HANDLER_NAME_ATTRIBUTE, None) == handler.name
    return f"{handler.name} (consumed)" if claims_same_name else handler.name


def _call(handler: Handler, event: Event, entry: Entry) -> None:
    if entry.is_exhausted:
        raise DeliveriesExhausted
    handler.call(event)


def _outcome_of_entry(event: Event, outcomes: dict[str, Outcome]) -> EntryOutcome:
    """Return the outcome of the entry, given the outcome of each handler.

    The entry is delivered again as long as one handler needs that. The inbox skips the handlers that have processed it.
    """
    errors = {name: outcome.error for name, outcome in outcomes.items() if not isinstance(outcome, Delivered)}
    if not errors:
        return Processed()
    error = "; ".join(f"{name}: {text}" for name, text in errors.items())
    if any(isinstance(outcome, Unavailable) for outcome in outcomes.values()):
        return Redeliver(error)
    if any(isinstance(outcome, Retry) for outcome in outcomes.values()) and event.attempt < event.max_attempts:
        return Redeliver(error, is_counted=True)
    return Parked(error, event)
