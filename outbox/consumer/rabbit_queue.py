"""Take messages from a queue of RabbitMQ and acknowledge them. pika is an optional dependency.

The connection's event loop receives messages into a buffer, and sends heartbeats while handlers run. RabbitMQ gives a
consumer only a limited number of messages (`prefetch`) before it has acknowledged one. A message that waits to be tried
again is one of them: so `renew` begins a new subscription when many of them wait, and the old messages no longer count.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pika
import pika.exceptions

from outbox.buses.rabbit_connection import RabbitConnection
from outbox.consumer.options import ConsumerOptions
from outbox.errors import SettingsError, Unavailable, describe

# The codes with which RabbitMQ closes a channel if the queue does not exist, is locked by another connection, or may
# not be used. Other codes are temporary, such as that of a queue whose node is down.
MISTAKES = (403, 405, 406)
NOT_FOUND = 404
# AMQP has two bytes for it.
MOST_PREFETCH = 65_535


@dataclass(frozen=True, slots=True)
class Received:
    """A message as RabbitMQ delivered it to this consumer."""

    tag: int
    is_redelivered: bool
    properties: Any
    body: bytes


class QueueMissing(Exception):
    """There is no such queue."""


class RabbitQueue:
    """A queue, from the view of one consumer, over one connection. After an error it can't be used any more."""

    def __init__(self, servers: Sequence[pika.connection.Parameters], queue: str, options: ConsumerOptions) -> None:
        self._queue, self._consumer, self._timeout = queue, options.name, options.timeout
        self._prefetch = min(options.read_count, MOST_PREFETCH)
        self._changed = threading.Condition()
        self._buffer: deque[Received] = deque()
        # Why no more messages will come; None while they come.
        self.error: str | None = None
        self._channel: Any = None
        self._subscriptions = 0
        self._tag = ""
        try:
            self._connection = RabbitConnection(servers, f"consumer {options.name}", options.timeout)
        except Exception as error:
            raise Unavailable(describe(error)) from None

    @property
    def is_open(self) -> bool:
        return self.error is None and self._connection.is_open

    @property
    def is_subscribed(self) -> bool:
        return self._subscriptions > 0

    def subscribe(self) -> None:
        """Let messages come."""
        self._run(self._open())

    async def _open(self) -> None:
        self._channel = channel = await self._connection.open_channel()
        channel.add_on_close_callback(lambda _, reason: self._end(reason))
        channel.add_on_cancel_callback(lambda _: self._end("RabbitMQ has cancelled the consumer: the queue is gone"))
        await self._subscribe()

    async def _subscribe(self) -> None:
        done = _future(self._channel)
        self._channel.basic_qos(prefetch_count=self._prefetch, callback=lambda _: _resolve(done))
        await _success(done)
        done = _future(self._channel)
        self._subscriptions += 1
        self._tag = f"{self._consumer}/{self._subscriptions}"
        self._channel.basic_consume(
            self._queue, self._on_message, consumer_tag=self._tag, callback=lambda _: _resolve(done)
        )
        await _success(done)

    def renew(self) -> None:
        """Begin a new subscription: what was received before no longer counts towards `prefetch`."""
        self._run(self._renew())

    async def _renew(self) -> None:
        await self._cancel()
        await self._subscribe()

    async def _cancel(self) -> None:
        done = _future(self._channel)
        self._channel.basic_cancel(self._tag, callback=lambda _: _resolve(done))
        await _success(done)

    def _on_message(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        with self._changed:
            self._buffer.append(Received(method.delivery_tag, method.redelivered, properties, body))
            self._changed.notify_all()

    def _end(self, reason: object) -> None:
        with self._changed:
            if self.error is None:
                self.error = describe(reason) if isinstance(reason, Exception) else str(reason)
            self._changed.notify_all()

    def take(self, count: int, seconds: float) -> list[Received]:
        """Return up to `count` messages; wait up to `seconds` for the first one. Raise Unavailable if none can come."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._buffer) or self.error is not None, seconds)
            if self.error is not None:  # RabbitMQ gives what is in the buffer to another consumer
                raise Unavailable(self.error)
            return [self._buffer.popleft() for _ in range(min(count, len(self._buffer)))]

    @property
    def waiting(self) -> int:
        """Return how many messages have come, and were not taken."""
        return len(self._buffer)

    def settle(self, acknowledged: Iterable[int] = (), returned: Iterable[int] = ()) -> None:
        """Acknowledge messages, and give others back to the queue. If the connection is lost, all go back."""
        self._connection.call(self._settle, list(acknowledged), list(returned))

    def _settle(self, acknowledged: Sequence[int], returned: Sequence[int]) -> None:
        if self._channel.is_open:
            for tag in acknowledged:
                self._channel.basic_ack(tag)
            for tag in returned:
                self._channel.basic_nack(tag, requeue=True)

    def count(self, queue: str) -> int:
        """Return how many messages of a queue no consumer was given. Raise QueueMissing if it does not exist."""
        return int(self._run(self._declare(queue, passive=True)).message_count)

    def declare(self, queue: str) -> None:
        """Create a durable quorum queue."""
        self._run(self._declare(queue, durable=True, arguments={"x-queue-type": "quorum"}))

    async def _declare(self, queue: str, **options: Any) -> Any:
        channel = await self._connection.open_channel()  # RabbitMQ closes it if the queue does not exist
        done = _future(channel)
        try:
            channel.queue_declare(queue, callback=lambda frame: _resolve(done, frame.method), **options)
            return await _success(done)
        finally:
            if channel.is_open:
                channel.close()

    def _run(self, coroutine: Any) -> Any:
        """Run a coroutine in the event loop. Raise Unavailable for a temporary error, SettingsError for any other."""
        try:
            return self._connection.run(coroutine, self._timeout)
        except pika.exceptions.ChannelClosedByBroker as error:
            if error.reply_code == NOT_FOUND:
                raise QueueMissing(error.reply_text) from None
            text = f"RabbitMQ closed the channel: {error.reply_code} {error.reply_text}"
            raise SettingsError(text) if error.reply_code in MISTAKES else Unavailable(text) from None
        except Exception as error:
            raise Unavailable(describe(error)) from None

    def leave(self) -> None:
        """Take no more messages, and give back those that were not acknowledged."""
        self._run(self._leave())

    async def _leave(self) -> None:
        if self._channel is not None and self._channel.is_open:
            closed = asyncio.get_running_loop().create_future()
            self._channel.add_on_close_callback(lambda *_: _resolve(closed))
            self._channel.close()
            await closed

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def _future(channel: Any) -> asyncio.Future[Any]:
    """Return a future that the channel's end resolves with the reason."""
    future = asyncio.get_running_loop().create_future()
    channel.add_on_close_callback(lambda _, reason: _resolve(future, reason))
    return future


async def _success(future: asyncio.Future[Any]) -> Any:
    result = await future
    if isinstance(result, Exception):
        raise result
    return result


def _resolve(future: asyncio.Future[Any], result: object = None) -> None:
    if not future.done():
        future.set_result(result)
