"""Write parked messages to the dead-letter queue of RabbitMQ.

It uses a connection of its own. While memory or disk is short, RabbitMQ stops reading from every connection that has
published; acknowledgements on the same connection would then wait, too. It is opened for the first message.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from outbox.buses.rabbit_connection import Publication, RabbitConnection
from outbox.consumer.options import ConsumerOptions
from outbox.consumer.rabbit_queue import Received
from outbox.errors import Unavailable, describe
from outbox.text import shorten

# A message's headers must fit in one frame, of 128 KiB.
MOST_ERROR = 2_000


class ParkingQueue:
    """The dead-letter queue of one consumer."""

    def __init__(self, servers: Sequence[Any], options: ConsumerOptions) -> None:
        self._servers, self._options = servers, options
        self._connection: RabbitConnection | None = None

    def add(self, message: Received, error: str, deliveries: int) -> None:
        """Store a message with its error, as it was received. Raise Unavailable unless RabbitMQ confirms it."""
        properties = copy.copy(message.properties)
        # It would expire in the dead-letter queue, too; and RabbitMQ refuses another user's id.
        properties.expiration = properties.user_id = None
        properties.delivery_mode = 2
        properties.headers = dict(message.properties.headers or {}) | {
            "error": shorten(error, MOST_ERROR),
            "deliveries": deliveries,
            "queue": self._options.stream,
        }
        publication = Publication("", self._options.dead_letter, message.body, properties, mandatory=True)
        try:
            result = self._connected().publish([publication], self._options.timeout)
        except Exception as failure:
            self.close()
            raise Unavailable(describe(failure)) from None
        confirmation = result.confirmations.get(0)
        if confirmation is None or confirmation.kind != "confirmed":
            self.close()
            reason = f"{confirmation.kind} {confirmation.reason}".strip() if confirmation else result.error
            raise Unavailable(
                f"RabbitMQ has not stored a message in the dead-letter queue {self._options.dead_letter!r}: "
                f"{reason or 'no confirmation in time'}"
            )

    def _connected(self) -> RabbitConnection:
        if self._connection is None or not self._connection.is_open:
            self.close()
            name = f"consumer {self._options.name}, parking"
            self._connection = RabbitConnection(self._servers, name, self._options.timeout)
        return self._connection

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
