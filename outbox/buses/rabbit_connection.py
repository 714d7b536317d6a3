"""A connection to RabbitMQ that publishes batches and collects the confirmations. pika is an optional dependency.

The connection is served by an event loop in a thread of its own, which also sends heartbeats between two batches. Each
batch in flight has a channel of its own: if RabbitMQ refuses a message, it closes the channel, and other batches must
not suffer from that.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeVar

import pika
import pika.exceptions
import pika.frame
from pika.adapters.utils.connection_workflow import AMQPConnectionWorkflowFailed

from outbox.buses import pika_log
from outbox.buses.event_loop import EventLoop
from outbox.buses.message import Message
from outbox.buses.rabbit_writes import BatchingConnection
from outbox.errors import describe
from outbox.events.event import Event

T = TypeVar("T")

# How long an orderly close may take.
CLOSE_SECONDS = 1.0
# How much longer than a deadline the calling thread waits for the event loop, which keeps the deadline itself.
SPARE_SECONDS = 1.0

PERSISTENT = 2
APPLICATION = "dramatiq-outbox"
# What headers need at most: for each character, and for their names and the other properties.
MOST_BYTES_OF_A_CHARACTER, OTHER_PROPERTIES = 4, 4_000
# AMQP's limit for routing keys and for the properties that are short texts, in bytes.
SHORT_TEXT = 255


@dataclass(frozen=True, slots=True)
class Publication:
    """A message, and where it is published to."""

    exchange: str
    routing_key: str
    body: bytes
    properties: pika.BasicProperties
    mandatory: bool


@dataclass(frozen=True, slots=True)
class Confirmation:
    """What RabbitMQ has done with a message.

    "confirmed": it is stored in every queue that it was routed to. "rejected": it could not be stored (basic.nack).
    "returned": it could not be routed to a queue (basic.return). "invalid": it can't be encoded, and was not sent.
    """

    kind: Literal["confirmed", "rejected", "returned", "invalid"]
    reason: str = ""


CONFIRMED, REJECTED = Confirmation("confirmed"), Confirmation("rejected")


class Refusal(NamedTuple):
    """Why RabbitMQ has closed a channel."""

    code: int
    text: str

    def __str__(self) -> str:
        return f"RabbitMQ closed the channel: {self.code} {self.text}"


@dataclass(slots=True)
class Result:
    """The result of a batch: a confirmation for each message, by its place in the batch."""

    confirmations: dict[int, Confirmation] = field(default_factory=dict)
    # Why the channel, or the connection, was closed before all were confirmed.
    error: Exception | None = None

    @property
    def refusal(self) -> Refusal | None:
        """Return why RabbitMQ has closed the channel, if it has, and the connection is still open."""
        if isinstance(self.error, pika.exceptions.ChannelClosedByBroker):
            return Refusal(self.error.reply_code, self.error.reply_text)
        return None


class ConfirmChannel:
    """A channel with publisher confirms. It publishes one batch at a time."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self._next_tag = 1
        self._places: dict[int, int] = {}
        self._ids: dict[str | None, int] = {}
        self._result = Result()
        self._done: asyncio.Future[None] | None = None
        channel.add_on_return_callback(self._on_return)
        channel.add_on_close_callback(self._on_close)

    async def select_confirms(self) -> None:
        selected = asyncio.get_running_loop().create_future()
        self._done = selected
        self._channel.confirm_delivery(self._on_confirm, lambda _: _resolve(selected))
        await selected
        if self._result.error is not None:
            raise self._result.error

    @property
    def is_idle(self) -> bool:
        """Return whether it can publish another batch."""
        return bool(self._channel.is_open) and not self._places

    async def publish(self, batch: Sequence[Publication], ends_at: float) -> Result:
        """Publish the batch, and wait until all are confirmed, the channel is closed, or the time is up."""
        self._result = result = Result()
        self._ids = {}
        self._done = asyncio.get_running_loop().create_future()
        with self._channel.connection.collecting():
            for place, each in enumerate(batch):
                self._publish(place, each)
        if self._places and result.error is None:
            await asyncio.wait([self._done], timeout=max(0.0, ends_at - time.monotonic()))
        return result

    def _publish(self, place: int, each: Publication) -> None:
        if self._result.error is not None:
            return
        try:
            self._check_headers(each)
            self._channel.basic_publish(each.exchange, each.routing_key, each.body, each.properties, each.mandatory)
        except (pika.exceptions.AMQPConnectionError, pika.exceptions.AMQPChannelError) as error:
            self._result.error = error
        except Exception as error:  # it can't be encoded: nothing was sent, and the channel can still be used
            self._result.confirmations[place] = Confirmation("invalid", describe(error))
        else:
            self._ids[each.properties.message_id] = place
            self._places[self._next_tag] = place
            self._next_tag += 1

    def _check_headers(self, each: Publication) -> None:
        """Raise ValueError if the headers don't fit in one frame: RabbitMQ would end the connection."""
        most = self._channel.connection.params.frame_max
        values = (each.properties.headers or {}).values()
        characters = sum(len(value) if isinstance(value, str) else most for value in values)
        if MOST_BYTES_OF_A_CHARACTER * characters + OTHER_PROPERTIES > most:  # seldom, so that few are encoded twice
            size = len(pika.frame.Header(self._channel.channel_number, len(each.body), each.properties).marshal())
            if size > most:
                raise ValueError(f"its headers have {size:,} bytes; RabbitMQ takes {most:,}")

    def _on_confirm(self, frame: Any) -> None:
        tag = frame.method.delivery_tag
        confirmation = CONFIRMED if isinstance(frame.method, pika.spec.Basic.Ack) else REJECTED
        tags = [each for each in self._places if each <= tag] if frame.method.multiple else [tag]
        for each in tags:
            place = self._places.pop(each, None)
            if place is not None:
                self._result.confirmations.setdefault(place, confirmation)
        if not self._places:
            _resolve(self._done)

    def _on_return(self, channel: Any, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
        # RabbitMQ returns a message before it confirms it: the confirmation does not replace this.
        place = self._ids.get(properties.message_id)
        if place is not None:
            self._result.confirmations[place] = Confirmation("returned", f"{method.reply_code} {method.reply_text}")

    def _on_close(self, channel: Any, reason: Exception) -> None:
        self._result.error = reason
        _resolve(self._done)

    def close(self) -> None:
        if self._channel.is_open:
            self._channel.close()


class RabbitConnection:
    """A connection, its event loop, and its idle channels. `publish` may be called by several threads at a time."""

    def __init__(self, servers: Sequence[pika.connection.Parameters], name: str, seconds: float) -> None:
        self._servers = servers
        self._idle: list[ConfirmChannel] = []
        self._connection: Any = None
        # Why RabbitMQ has blocked publishers on this connection; None if it has not.
        self.blocked: str | None = None
        pika_log.quiet()
        self._loop = EventLoop(f"{pika_log.THREAD_PREFIX}{name}")
        try:
            self._loop.run(self._open(time.monotonic() + seconds), seconds + SPARE_SECONDS)
        except BaseException:
            self._loop.stop()
            raise

    async def _open(self, ends_at: float) -> None:
        opened = asyncio.get_running_loop().create_future()
        workflow = BatchingConnection.create_connection(
            self._servers, lambda found: _resolve(opened, found), custom_ioloop=asyncio.get_running_loop()
        )
        try:
            found = await asyncio.wait_for(opened, max(0.0, ends_at - time.monotonic()))
        except TimeoutError:
            workflow.abort()
            raise TimeoutError("RabbitMQ did not open the connection in time") from None
        if isinstance(found, Exception):
            raise cause_of(found)
        self._connection = found
        found.add_on_connection_blocked_callback(self._on_blocked)
        found.add_on_connection_unblocked_callback(self._on_unblocked)

    def _on_blocked(self, connection: Any, frame: Any) -> None:
        self.blocked = str(frame.method.reason)

    def _on_unblocked(self, connection: Any, frame: Any) -> None:
        self.blocked = None

    @property
    def is_open(self) -> bool:
        return self._connection is not None and bool(self._connection.is_open)

    def publish(self, batch: Sequence[Publication], seconds: float) -> Result:
        """Publish the batch; return the result of each message that has one within this many seconds."""
        return self._loop.run(self._publish(batch, time.monotonic() + seconds), seconds + SPARE_SECONDS)

    async def _publish(self, batch: Sequence[Publication], ends_at: float) -> Result:
        async with asyncio.timeout(max(0.0, ends_at - time.monotonic())):
            channel = self._idle.pop() if self._idle else await self._open_channel()
        try:
            return await channel.publish(batch, ends_at)
        finally:
            if channel.is_idle:
                self._idle.append(channel)
            else:
                channel.close()

    async def _open_channel(self) -> ConfirmChannel:
        confirming = ConfirmChannel(await self.open_channel())
        await confirming.select_confirms()
        return confirming

    async def open_channel(self) -> Any:
        """Return a new channel of pika. Call it, and the channel, in the event loop (`run`, `call`)."""
        opened = asyncio.get_running_loop().create_future()
        channel = self._connection.channel(on_open_callback=lambda _: _resolve(opened))
        channel.add_on_close_callback(lambda _, reason: _resolve(opened, reason))
        reason = await opened
        if isinstance(reason, Exception):
            raise reason
        return channel

    async def check_exchange(self, exchange: str) -> None:
        """Raise an error of pika unless the exchange exists."""
        channel = await self.open_channel()  # RabbitMQ closes it if the exchange does not exist
        declared = asyncio.get_running_loop().create_future()
        channel.add_on_close_callback(lambda _, reason: _resolve(declared, reason))
        channel.exchange_declare(exchange, passive=True, callback=lambda _: _resolve(declared))
        reason = await declared
        if isinstance(reason, Exception):
            raise reason
        channel.close()

    def run(self, coroutine: Coroutine[Any, Any, T], seconds: float) -> T:
        """Run the coroutine in the event loop, and return its result. After `seconds` raise TimeoutError."""
        return self._loop.run(coroutine, seconds)

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """Let the event loop call the function soon."""
        self._loop.call(function, *arguments)

    def close(self) -> None:
        """Close the connection, and end the event loop's thread."""
        with contextlib.suppress(Exception):  # it may be broken, and is not used any more
            self._loop.run(self._close(), CLOSE_SECONDS)
        self._loop.stop()

    async def _close(self) -> None:
        closed = asyncio.get_running_loop().create_future()
        if self.is_open:
            self._connection.add_on_close_callback(lambda *_: _resolve(closed))
            self._connection.close()
        else:
            _resolve(closed)
        try:
            await closed
        finally:
            # pika has no public function that closes the socket if the server no longer responds.
            transport = getattr(self._connection, "_transport", None)
            if transport is not None:
                transport.abort()
            await asyncio.sleep(0)  # pika closes the socket in a callback


def make_publication(
    event: Event, message: Message, exchange: str, routing_key: str, *, mandatory: bool
) -> Publication:
    """Return the message for an event. A property that is too long for AMQP is left out; the headers have it, too."""
    if _short(routing_key) is None:
        raise ValueError(f"the routing key is longer than {SHORT_TEXT} bytes: {routing_key!r}")
    properties = pika.BasicProperties(
        content_type=message.content_type,
        delivery_mode=PERSISTENT,
        message_id=event.id_text,
        timestamp=int(event.created_at.timestamp()),
        type=_short(event.event_type),
        correlation_id=_short(event.correlation_id),
        app_id=APPLICATION,
        headers=message.headers,
    )
    return Publication(exchange, routing_key, message.body, properties, mandatory)


def _short(text: str | None) -> str | None:
    if text is None or len(text) * MOST_BYTES_OF_A_CHARACTER <= SHORT_TEXT:  # so that few texts are encoded twice
        return text
    return text if len(text.encode()) <= SHORT_TEXT else None


def cause_of(error: Exception) -> Exception:
    """Return why no connection could be opened: pika wraps it several times."""
    while True:
        inner = error.exceptions[-1] if isinstance(error, AMQPConnectionWorkflowFailed) else None
        inner = getattr(error, "exception", None) if inner is None else inner
        if not isinstance(inner, Exception):
            return error
        error = inner


def _resolve(future: asyncio.Future[Any] | None, result: object = None) -> None:
    if future is not None and not future.done():
        future.set_result(result)
