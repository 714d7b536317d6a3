"""Count in rows of the inbox how often a message was delivered, for brokers that don't count deliveries.

RabbitMQ only says whether a message was delivered before. (A quorum queue counts, but it also counts messages that a
consumer had fetched and not begun.) So each delivery that a consumer begins has a row, except for the first one: most
messages need no row. The row is committed before the handlers are called, so a delivery that crashes its consumer is
counted. Rows are deleted with the inbox's other old rows.
"""

from __future__ import annotations

import re
from dataclasses import replace

from outbox.consumer.entry import Entry
from outbox.events.event import Event
from outbox.inbox.inbox import Inbox
from outbox.storage import schema

_NUMBER = re.compile(r"\(delivery (\d+) from ")
# Names of queues may be as long as the column.
MOST_NAME = 200


class DeliveryCount:
    """Counts deliveries in one inbox."""

    def __init__(self, inbox: Inbox, max_deliveries: int) -> None:
        self._inbox, self._max_deliveries = inbox, max_deliveries
        # If a message may be delivered only once, the first delivery has a row, too. Otherwise a message that its
        # consumer had fetched and not begun would be parked.
        self._first_with_row = 1 if max_deliveries == 1 else 2

    def begin(self, entry: Entry, event: Event) -> Entry:
        """Return the entry with the number of its deliveries, this one included; store a row for this delivery."""
        queue = entry.counted_for
        if queue is None:
            return entry
        deliveries = entry.deliveries + entry.is_exhausted
        if entry.is_redelivered:
            deliveries = max(self._rows(event, queue), self._first_with_row - 1) + 1
        if self._first_with_row <= deliveries <= self._max_deliveries:
            self._run(self._inbox.dialect.statements.inbox_insert, event, _name(deliveries, queue))
        most = self._max_deliveries
        return replace(entry, deliveries=min(deliveries, most), is_exhausted=deliveries > most, is_redelivered=False)

    def undo(self, entry: Entry, event: Event) -> None:
        """Remove the row of a delivery that does not count."""
        if entry.counted_for is not None and entry.deliveries >= self._first_with_row and not entry.is_exhausted:
            statement = self._inbox.dialect.statements.inbox_forget
            self._run(statement, event, _name(entry.deliveries, entry.counted_for))

    def _rows(self, event: Event, queue: str) -> int:
        """Return the number of the last delivery that has a row; 0 if none has."""
        dialect = self._inbox.dialect
        with dialect.connection(), schema.explaining_missing_inbox(dialect):
            rows = dialect.run(dialect.statements.inbox_handlers, (str(event.id),)).fetchall()
        numbers = [int(match[1]) for (name,) in rows if (match := _NUMBER.match(name)) is not None]
        names = {name for (name,) in rows}
        return max((number for number in numbers if _name(number, queue) in names), default=0)

    def _run(self, statement: str, event: Event, name: str) -> None:
        """Run a statement about a row, in a transaction of its own."""
        dialect = self._inbox.dialect
        with dialect.connection(), schema.explaining_missing_inbox(dialect), dialect.atomic():
            dialect.run(statement, (str(event.id), name))


def _name(deliveries: int, queue: str) -> str:
    return f"(delivery {deliveries} from {queue[:MOST_NAME]})"
