"""attempt: give one entry to the handlers that want it, each through the inbox, and say what becomes of it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from outbox.consumer.counts import Counts
from outbox.consumer.database_outage import is_outage
from outbox.consumer.entry_outcome import EntryOutcome, Parked, Processed, Redeliver
from outbox.consumer.handler_session import DatabaseServer, HandlerSession
from outbox.consumer.stream_entry import StreamEntry, event_of
from outbox.destinations import delivery_span
from outbox.destinations.handler import CALL_ERRORS, Handler
from outbox.destinations.outcome import DELIVERED_OUTCOME, Delivered, Failed, Outcome, Retry
from outbox.destinations.registry import Registry
from outbox.errors import InvalidMessage, SchemaError, Unavailable, describe
from outbox.events.event import Event
from outbox.inbox.inbox import MARK
from outbox.telemetry import tracing
from outbox.text import one_line

if TYPE_CHECKING:
    from outbox.core import Outbox

logger = logging.getLogger("outbox")

SESSION_ENDED = (
    "the database server ended the handler's session and keeps running ({error}). If the handler takes longer than "
    "idle_in_transaction_session_timeout or transaction_timeout allow, move the slow work out of it"
)


class DatabaseLost(Exception):
    """Whoever is next would find the same."""


class DeliveriesExhausted(Exception):
    """It was handed out as often as it may be, and nobody has said what came of it."""


class EntryProcessor:
    """Tries entries on the handlers of a registry."""

    def __init__(self, box: Outbox, registry: Registry, max_deliveries: int, tally: Counts) -> None:
        self._box = box
        self._registry = registry
        self._max_deliveries = max_deliveries
        self._tally = tally
        self._server = DatabaseServer(box.inbox.dialect)

    def attempt(self, entry: StreamEntry) -> EntryOutcome:
        try:
            event = event_of(entry, self._max_deliveries)
        except InvalidMessage as error:
            return Parked(str(error))
        handlers = [each for each in self._registry.wanting(event.event_type) if isinstance(each, Handler)]
        if not handlers:
            logger.debug("no handler here wants %r", event)
        try:
            outcomes = {handler.name: self._traced(handler, event, entry) for handler in handlers}
        except DatabaseLost as lost:
            return Redeliver(str(lost), lost=True)
        return _fate(event, outcomes)

    def _traced(self, handler: Handler, event: Event, entry: StreamEntry) -> Outcome:
        tracer = tracing.tracer()
        if tracer is None:
            return self._give(handler, event, entry)
        outcome: Outcome = Retry("interrupted")
        delivery_span.start_span(tracer, event, handler)
        try:
            outcome = self._give(handler, event, entry)
        finally:
            delivery_span.end_span(event, outcome)
        return outcome

    def _give(self, handler: Handler, event: Event, entry: StreamEntry) -> Outcome:
        """One transaction for the handler's effect and for the row that says so: both, or neither."""
        session = HandlerSession(self._box.inbox.dialect)
        try:
            with self._box.dialect.connection(), self._box.inbox.claim(event.id, name_of(handler)) as first:
                if not first:
                    self._tally.skipped += 1
                else:
                    with session.watched():
                        _call(handler, event, entry)
        except SchemaError:
            raise  # so it would be for every entry
        except DeliveriesExhausted:
            return Failed(f"delivered {entry.deliveries} times, and its consumer has died or fallen silent each time")
        except CALL_ERRORS as error:
            if not is_outage(error):
                return handler.outcome_of(event, error)
            text = one_line(describe(error))
            if self._server.ended(session, error):
                return Retry(SESSION_ENDED.format(error=text))
            raise DatabaseLost(text) from error
        return DELIVERED_OUTCOME


def name_of(handler: Handler) -> str:
    """The name in the inbox. A function that asks the inbox itself, by the same name, must not find this row there."""
    asks_itself = getattr(handler.function, MARK, None) == handler.name
    return f"{handler.name} (consumed)" if asks_itself else handler.name


def _call(handler: Handler, event: Event, entry: StreamEntry) -> None:
    if entry.spent:
        raise DeliveriesExhausted
    handler.call(event)


def _fate(event: Event, outcomes: dict[str, Outcome]) -> EntryOutcome:
    """An entry waits for the handler that needs longest: one that has dealt with it is not called again."""
    errors = {name: outcome.error for name, outcome in outcomes.items() if not isinstance(outcome, Delivered)}
    if not errors:
        return Processed()
    error = "; ".join(f"{name}: {text}" for name, text in errors.items())
    if any(isinstance(outcome, Unavailable) for outcome in outcomes.values()):
        return Redeliver(error)
    if any(isinstance(outcome, Retry) for outcome in outcomes.values()) and event.attempt < event.max_attempts:
        return Redeliver(error, counts=True)
    return Parked(error, event)
