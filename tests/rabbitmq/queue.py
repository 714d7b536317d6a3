"""A queue of the test's own, what is published to it, and what consumers of it have done."""

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pika

from outbox.storage.ids import uuid7
from tests.rabbitmq.queues import consumers_and_messages
from tests.rabbitmq.server import RabbitmqServer


def headers(**others: Any) -> dict[str, Any]:
    """Return the headers of a message as `outbox.Rabbit` writes them."""
    return {
        "id": str(uuid7()),
        "type": "note.taken",
        "aggregate_type": "Note",
        "aggregate_id": "1",
        "time": "2026-01-31T12:00:00.250000+00:00",
    } | others


class Queue:
    """A durable queue; `kind` is "classic" or "quorum". `exchange`: the kind of an exchange with its name before it."""

    def __init__(self, server: RabbitmqServer, kind: str = "classic", *, exchange: str | None = None) -> None:
        self._server = server
        self.name = f"queue-{uuid.uuid4().hex}"
        with self.channel() as channel:
            channel.queue_declare(self.name, durable=True, arguments={"x-queue-type": kind})
            if exchange is not None:
                channel.exchange_declare(self.name, exchange, durable=True)
                channel.queue_bind(self.name, self.name)

    @contextmanager
    def channel(self) -> Iterator[Any]:
        with pika.BlockingConnection(pika.URLParameters(self._server.url)) as connection:
            yield connection.channel()

    def publish(self, *payloads: dict[str, Any], **others: Any) -> list[UUID]:
        """Publish a message for each payload, and return the ids of their events."""
        ids = []
        with self.channel() as channel:
            channel.confirm_delivery()
            for payload in payloads:
                given = headers(**others)
                properties = pika.BasicProperties(
                    headers=given, content_type="application/json", delivery_mode=2, message_id=given["id"]
                )
                channel.basic_publish("", self.name, json.dumps(payload).encode(), properties)
                ids.append(UUID(given["id"]))
        return ids

    def publish_raw(self, body: bytes, **properties: Any) -> None:
        with self.channel() as channel:
            channel.basic_publish("", self.name, body, pika.BasicProperties(**properties))

    def left(self) -> int:
        """Return how many messages wait, in the queue itself; not those that a consumer has."""
        return consumers_and_messages(self._server, self.name)[1]

    def parked(self) -> list[tuple[Any, bytes]]:
        """Take all messages from the dead-letter queue: their properties and bodies."""
        found: list[tuple[Any, bytes]] = []
        with self.channel() as channel:
            while True:
                method, properties, body = channel.basic_get(f"{self.name}.dead", auto_ack=True)
                if method is None:
                    return found
                found.append((properties, body))

    def parked_count(self) -> int:
        return consumers_and_messages(self._server, f"{self.name}.dead")[1]
