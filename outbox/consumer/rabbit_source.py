"""Read a queue of RabbitMQ. The consumers of a queue share its messages.

When a consumer's connection ends, RabbitMQ gives its messages to other consumers, and says only that they were
delivered before. So the inbox counts the deliveries (`delivery_count.py`). A message that has failed stays with this
consumer, unacknowledged, until it is tried again after `idle_seconds`. Given back to the queue, it would be delivered
again at once; and a quorum queue would count that towards its `delivery-limit`, and then drop the message.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from outbox.buses.rabbit import parse_servers
from outbox.consumer.entry import Entry
from outbox.consumer.message_fields import fields_of
from outbox.consumer.options import ConsumerOptions
from outbox.consumer.parking_queue import ParkingQueue
from outbox.consumer.rabbit_queue import QueueMissing, RabbitQueue, Received
from outbox.consumer.source import SourceState
from outbox.errors import InvalidMessage, RegistrationError, SettingsError, Unavailable

logger = logging.getLogger(__name__)

# RabbitMQ closes the channel of a consumer that has not acknowledged a message for 30 minutes. So a message that keeps
# waiting is given back to the queue before that.
MOST_SECONDS = 900.0
# How many failed messages may wait in a consumer. If there are more, it takes no new ones.
MOST_WAITING = 1_000


@dataclass(slots=True)
class _Message:
    """A message that has not been settled."""

    received: Received
    entry: Entry
    received_at: float
    # The number of the subscription that it came with.
    subscription: int
    # When it is tried again; None while it is being processed.
    due_at: float | None = None


class RabbitSource:
    """The queue of one consumer. It connects when it is first used, and again after the connection was lost."""

    server: ClassVar[str] = "RabbitMQ"
    kind: ClassVar[str] = "queue"

    def __init__(self, url: str, options: ConsumerOptions, max_payload_bytes: int) -> None:
        self.name, self.dead_letter = options.stream, options.dead_letter
        self._options, self._max_payload_bytes = options, max_payload_bytes
        self._servers = _parse(url, options.name)
        if options.idle_seconds > MOST_SECONDS:
            raise SettingsError(
                f"idle_seconds must be at most {MOST_SECONDS:.0f} for a queue of RabbitMQ, which closes the channel of "
                "a consumer that keeps a message for 30 minutes."
            )
        self._parking = ParkingQueue(self._servers, options)
        self._queue: RabbitQueue | None = None
        # The messages that were given to the consumer and not settled, by the id of their entry.
        self._messages: dict[str, _Message] = {}
        # Entries of earlier connections must not be taken for those of this one, whose tags begin at 1 again.
        self._connections = itertools.count(1)
        self._connection_number = 0
        self._subscription = 0

    def check(self) -> None:
        queue = self._connected(subscribe=False)
        try:
            queue.count(self.name)
        except QueueMissing:
            raise SettingsError(
                f"RabbitMQ has no queue {self.name!r}: declare it, and bind it to the exchange that the outbox "
                "publishes to."
            ) from None
        try:
            queue.count(self.dead_letter)
        except QueueMissing:
            logger.info("%s: creating the dead-letter queue %s", self.name, self.dead_letter)
            queue.declare(self.dead_letter)

    def open(self) -> None:
        self._connected()

    def read(self, seconds: float) -> Sequence[Entry]:
        queue = self._connected()
        self._hold_what_was_not_settled()
        if self._needs_subscription():
            queue.renew()
            self._subscription += 1
        received = queue.take(self._options.read_count, seconds)
        return [self._entry(each) for each in received]

    def _needs_subscription(self) -> bool:
        """Return whether half of the messages that RabbitMQ gives to the subscription wait to be tried again."""
        waiting = sum(each.subscription == self._subscription for each in self._messages.values())
        return waiting >= max(1, self._options.read_count // 2) and len(self._messages) < MOST_WAITING

    def _entry(self, received: Received) -> Entry:
        """Make the entry of a message, and remember the message until the entry is settled."""
        id = f"{self._connection_number}-{received.tag}"
        properties, error = received.properties, None
        try:
            fields = fields_of(
                properties.headers or {}, received.body, properties.content_type, self._max_payload_bytes
            )
        except InvalidMessage as invalid:
            fields, error = {}, str(invalid)
        entry = Entry(id, fields, counted_for=self.name, is_redelivered=received.is_redelivered, error=error)
        self._messages[id] = _Message(received, entry, time.monotonic(), self._subscription)
        return entry

    def _hold_what_was_not_settled(self) -> None:
        """Schedule another try for entries whose outcome could not be written, because a method raised Unavailable."""
        for each in self._messages.values():
            if each.due_at is None:
                self._hold(each, each.entry)

    def _hold(self, message: _Message, entry: Entry) -> None:
        """Keep a message until it is due again, as this entry."""
        message.entry = entry
        message.due_at = time.monotonic() + self._options.idle_seconds

    def seconds_until_due(self) -> float:
        due = [each.due_at for each in self._messages.values() if each.due_at is not None]
        return min(due) - time.monotonic() if due else self._options.idle_seconds

    def due_again(self) -> Iterator[Entry]:
        now = time.monotonic()
        due = [each for each in self._messages.values() if each.due_at is not None and each.due_at <= now]
        self._settle(returned=[each for each in due if now - each.received_at > MOST_SECONDS])
        for each in due[: self._options.batch]:
            yield from self._begin(each)

    def _begin(self, message: _Message) -> Iterator[Entry]:
        if message.entry.id in self._messages:  # it was not given back, and the connection was not lost
            message.due_at = None
            yield message.entry

    def keep(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Return the entries, unless the connection was lost: then other consumers get them."""
        is_open = self._queue is not None and self._queue.is_open
        return [entry for entry in entries if is_open and entry.id in self._messages]

    def resume(self, entries: Iterable[Entry], seconds: float) -> Iterator[Entry]:
        for entry in entries:
            for each in self.keep([entry]):
                yield from self._begin(self._messages[each.id])

    def acknowledge(self, processed: Sequence[Entry], redelivered: Sequence[tuple[Entry, int]]) -> None:
        most = self._options.max_deliveries
        for entry, deliveries in redelivered:
            for message in self._messages_of([entry]):
                if entry.is_redelivered:  # not counted, since it was not begun with
                    self._hold(message, entry)
                else:
                    again = min(deliveries + 1, most)
                    self._hold(message, replace(entry, deliveries=again, is_exhausted=deliveries >= most))
        self._settle(acknowledged=self._messages_of(processed))

    def park(self, entry: Entry, error: str) -> None:
        found = self._messages_of([entry])
        for message in found:
            self._parking.add(message.received, error, entry.deliveries)
        self._settle(acknowledged=found)

    def _messages_of(self, entries: Iterable[Entry]) -> list[_Message]:
        """Return the messages of the entries, but for those that RabbitMQ has given to another consumer meanwhile."""
        return [self._messages[entry.id] for entry in entries if entry.id in self._messages]

    def _settle(self, acknowledged: Sequence[_Message] = (), returned: Sequence[_Message] = ()) -> None:
        for each in (*acknowledged, *returned):
            del self._messages[each.entry.id]
        if self._queue is not None:
            self._queue.settle([each.received.tag for each in acknowledged], [each.received.tag for each in returned])

    def state(self) -> SourceState:
        try:
            queue = self._connected(subscribe=False)
            return SourceState(queue.count(self.name), len(self._messages) + queue.waiting, pending_is_own=True)
        except QueueMissing:
            raise Unavailable(f"RabbitMQ has no queue {self.name!r}") from None

    def clean_up(self) -> None:
        pass  # RabbitMQ forgets a consumer when its connection ends

    def leave(self) -> None:
        if self._queue is not None:
            self._queue.leave()

    def close(self) -> None:
        self._disconnect()
        self._parking.close()

    def _connected(self, *, subscribe: bool = True) -> RabbitQueue:
        """Return the queue; connect if there is no connection, or if it was lost."""
        if self._queue is None or not self._queue.is_open:
            if self._queue is not None:
                logger.warning("%s: the connection to RabbitMQ was lost: %s", self.name, self._queue.error)
            self._disconnect()
            self._queue = RabbitQueue(self._servers, self.name, self._options)
            self._connection_number = next(self._connections)
        if subscribe and not self._queue.is_subscribed:
            try:
                self._queue.subscribe()
            except QueueMissing as missing:
                self._disconnect()
                raise Unavailable(str(missing)) from None
            except BaseException:
                self._disconnect()
                raise
        return self._queue

    def _disconnect(self) -> None:
        """Close the connection. RabbitMQ then delivers all messages again that were not acknowledged."""
        self._messages.clear()
        if self._queue is not None:
            self._queue.close()
            self._queue = None


def _parse(url: str, consumer: str) -> list[Any]:
    try:
        return parse_servers(url.split(), consumer, None)
    except RegistrationError as error:
        raise SettingsError(str(error)) from None
