"""A connection to NATS that publishes to JetStream and collects the acknowledgements.

nats-py is an optional dependency. The connection is served by an event loop in a thread of its own, which also replies
to the server's pings between two batches. nats-py would reconnect by itself, and then send what it has buffered, late
and out of order. So that is switched off: a connection that was lost is replaced by a new one.

JetStream acknowledges a message with a reply, for which this module subscribes to an inbox of its own. (The function
`publish_async` of nats-py 2.16 does the same, but never returns if JetStream replies with an error.)
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import nats.errors
from nats.aio.client import Client

from outbox.buses.event_loop import EventLoop

# How long an orderly close may take, and how much longer than a deadline the calling thread waits for the event loop.
CLOSE_SECONDS = 1.0
SPARE_SECONDS = 1.0
# JetStream's error code for a message that is larger than the stream allows.
TOO_LARGE = 10054
# The status of a reply from the server itself: no stream or client has subscribed to the subject.
NO_RESPONDERS = "503"

_PUBLISH_VIOLATION = re.compile(r'permissions violation for publish to "([^"]*)"', re.IGNORECASE)
# What the headers begin and end with, and what stands between the name and the value of each, and after it.
_AROUND_HEADERS = len("NATS/1.0\r\n\r\n")
_HEADER_OVERHEAD = 4


@dataclass(frozen=True, slots=True)
class Publication:
    """A message, and the subject that it is published to."""

    subject: str
    body: bytes
    headers: dict[str, str]

    @property
    def size(self) -> int:
        """Return how large the message is for the server, which ends the connection if that is too much."""
        headers = sum(len(name) + len(value) + _HEADER_OVERHEAD for name, value in self.headers.items())
        return len(self.body) + _AROUND_HEADERS + headers


class TooLarge(Exception):
    """The message is larger than the server or the stream allows."""


class NotPermitted(Exception):
    """The user may not publish to the subject."""


class NoStream(Exception):
    """No stream of JetStream replies for the subject."""


class NotStored(Exception):
    """JetStream could not store the message, for example since the stream is full."""


class _InFlight(NamedTuple):
    """A message without a reply yet. The future's result is the error of the message, or None."""

    subject: str
    future: asyncio.Future[Exception | None]


# The result of each message: None if it is stored, or the error; no entry if the result is not known.
Results = dict[int, Exception | None]


class NatsConnection:
    """A connection and its event loop. `publish` may be called by several threads at a time."""

    def __init__(self, servers: Sequence[str], options: Mapping[str, Any], name: str, seconds: float) -> None:
        self._servers, self._options, self._name = list(servers), dict(options), name
        self._errors: list[Exception] = []
        # The messages in flight, by the last part of the subject of their reply.
        self._in_flight: dict[str, _InFlight] = {}
        self._next_token = 0
        self._client: Any = None
        self._loop = EventLoop(f"outbox-nats-{name}")
        try:
            self._loop.run(self._open(seconds), seconds + SPARE_SECONDS)
        except BaseException:
            self._loop.stop()
            raise

    async def _open(self, seconds: float) -> None:
        client = Client()
        try:
            async with asyncio.timeout(seconds):
                await client.connect(
                    servers=self._servers,
                    name=f"outbox {self._name}",
                    error_cb=self._on_error,
                    closed_cb=self._on_close,
                    allow_reconnect=False,
                    # Tries each server twice, and without a pause: 0 attempts would mean to try for ever.
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    connect_timeout=max(1, round(seconds)),
                    **self._options,
                )
        except nats.errors.NoServersError as error:
            raise (self._errors or [error])[-1] from None
        except BaseException:
            with contextlib.suppress(Exception):
                await client.close()
            raise
        self._client, self._inbox = client, client.new_inbox()
        await client.subscribe(f"{self._inbox}.*", cb=self._on_reply)

    async def _on_reply(self, reply: Any) -> None:
        found = self._in_flight.pop(reply.subject.rpartition(".")[2], None)
        if found is not None:
            _resolve(found.future, _error_in(reply))

    async def _on_error(self, error: Exception) -> None:
        self._errors = [*self._errors[-9:], error]
        violation = _PUBLISH_VIOLATION.search(str(error))
        if violation is not None:  # NATS does not say which message it has refused, but its subject
            self._end_all(NotPermitted(str(error)), subject=violation[1].lower())

    async def _on_close(self) -> None:
        self._end_all(None)

    def _end_all(self, error: Exception | None, subject: str | None = None) -> None:
        """End the wait for the messages in flight, or for those with this subject; None: it is not known why."""
        for token, each in list(self._in_flight.items()):
            if subject is None or each.subject.lower() == subject:
                del self._in_flight[token]
                if error is None:
                    each.future.cancel()
                else:
                    _resolve(each.future, error)

    @property
    def is_open(self) -> bool:
        return self._client is not None and bool(self._client.is_connected)

    def publish(self, batch: Sequence[Publication], seconds: float) -> Results:
        """Publish the batch; return the result of each message that has one within this many seconds."""
        return self._loop.run(self._publish(batch, time.monotonic() + seconds), seconds + SPARE_SECONDS)

    async def _publish(self, batch: Sequence[Publication], ends_at: float) -> Results:
        results: Results = {}
        futures: dict[int, asyncio.Future[Exception | None]] = {}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, ends_at - time.monotonic())):
                for place, each in enumerate(batch):
                    await self._send(place, each, results, futures)
        if futures:
            await asyncio.wait(futures.values(), timeout=max(0.0, ends_at - time.monotonic()))
        for place, future in futures.items():
            if future.done() and not future.cancelled():
                results[place] = future.result()
        return results

    async def _send(
        self, place: int, each: Publication, results: Results, futures: dict[int, asyncio.Future[Exception | None]]
    ) -> None:
        if each.size > self._client.max_payload:
            results[place] = TooLarge(f"the message has {each.size} bytes; the server takes {self._client.max_payload}")
            return
        token = str(self._next_token)
        self._next_token += 1
        future = futures[place] = asyncio.get_running_loop().create_future()
        self._in_flight[token] = _InFlight(each.subject, future)
        try:
            await self._client.publish(each.subject, each.body, reply=f"{self._inbox}.{token}", headers=each.headers)
        except nats.errors.Error as error:
            del self._in_flight[token], futures[place]
            results[place] = error

    def close(self) -> None:
        """Close the connection, and end the event loop's thread."""
        with contextlib.suppress(Exception):
            self._loop.run(self._client.close(), CLOSE_SECONDS)
        self._loop.stop()


def _error_in(reply: Any) -> Exception | None:
    """Return the error that JetStream, or the server, has replied with; None for an acknowledgement."""
    if reply.headers and reply.headers.get("Status") == NO_RESPONDERS:
        return NoStream()
    try:
        error = json.loads(reply.data).get("error")
    except (ValueError, AttributeError):
        return NotStored(f"the reply can't be read: {reply.data[:100]!r}")
    if error is None:
        return None
    text = f"{error.get('description')} (error {error.get('err_code')})"
    return TooLarge(text) if error.get("err_code") == TOO_LARGE else NotStored(text)


def _resolve(future: asyncio.Future[Exception | None], result: Exception | None) -> None:
    if not future.done():
        future.set_result(result)
