"""An exchange of the test's own with a queue behind it, and what is in the queue."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pika

from tests.rabbitmq.server import RabbitmqServer

Received = tuple[Any, Any, bytes]


class Topology:
    """An exchange of the kind topic, and a queue that gets everything from it."""

    def __init__(self, server: RabbitmqServer, binding: str = "#", **arguments: Any) -> None:
        self._server = server
        name = uuid.uuid4().hex
        self.exchange, self.queue = f"events-{name}", f"queue-{name}"
        with self.channel() as channel:
            channel.exchange_declare(self.exchange, "topic", durable=True)
            named = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
            channel.queue_declare(self.queue, durable=True, arguments=named)
            channel.queue_bind(self.queue, self.exchange, binding)

    @contextmanager
    def channel(self) -> Iterator[Any]:
        with pika.BlockingConnection(pika.URLParameters(self._server.url)) as connection:
            yield connection.channel()

    def take(self) -> list[Received]:
        """Take all messages from the queue."""
        found: list[Received] = []
        with self.channel() as channel:
            while True:
                method, properties, body = channel.basic_get(self.queue, auto_ack=True)
                if method is None:
                    return found
                found.append((method, properties, body))

    def take_bodies(self) -> list[bytes]:
        return [body for _, _, body in self.take()]
