"""The transport over httpcore: connections that are kept between exchanges, used by one thread or several."""

from __future__ import annotations

import os
import ssl
import time
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

import httpx

from outbox.webhooks.transport.client_certificate import ClientCertificate, ClientContext
from outbox.webhooks.transport.httpcore_threads.connection import Connection
from outbox.webhooks.transport.httpcore_threads.response_times import ResponseTimes
from outbox.webhooks.transport.httpcore_threads.thread_pool import ThreadPool
from outbox.webhooks.transport.protocol import SendResult, WebhookRequest
from outbox.webhooks.transport.resolver import Resolver
from outbox.webhooks.transport.url import Url

K = TypeVar("K")


class HttpcoreTransport:
    """Sends requests with httpcore, over connections that it keeps in a stack while they are idle.

    The connection that was used last is used next, because it is most likely to be still open.
    """

    def __init__(
        self,
        name: str,
        *,
        public_only: bool = False,
        proxy: Url | None = None,
        ssl_context: ssl.SSLContext | None = None,
        client_certificate: ClientCertificate | None = None,
    ) -> None:
        self._name = name
        self._public_only = public_only
        self._proxy = proxy
        self._ssl_context = ssl_context
        self._client_context = None
        if client_certificate is not None:
            self._client_context = ClientContext(client_certificate, httpx.create_ssl_context)
        self._start()

    def exchange(
        self, requests: Iterator[tuple[K, WebhookRequest]], at_once: int
    ) -> Generator[tuple[K, SendResult], None, None]:
        """Send all requests and yield their results. See `Transport.exchange`."""
        if self._process != os.getpid():
            self._start()
        yield from self._exchange_in_this_thread(requests, only_one=at_once == 1)
        if at_once > 1:
            pool = ThreadPool[K](self._name, at_once, self._borrow_connection, self._response_times)
            yield from pool.exchange(requests)

    def _exchange_in_this_thread(
        self, requests: Iterator[tuple[K, WebhookRequest]], *, only_one: bool
    ) -> Generator[tuple[K, SendResult], None, None]:
        """Send requests one after the other, while the receiver is fast, or if `only_one` may be in flight.

        Handing a request to another thread, and its result back, takes as long as a fast receiver takes to respond.
        After a slow response the loop ends, and the remaining requests are sent by threads. If a connection has to be
        made first, all requests are left to threads, because connecting may take a while.
        """
        with self._borrow_connection() as connection:
            goes_on = only_one or (self._response_times.are_fast and not connection.is_stale)
            while goes_on and (taken := next(requests, None)) is not None:
                key, request = taken
                began_at = time.monotonic()
                result = connection.send(request)
                self._response_times.record(time.monotonic() - began_at)
                yield key, result
                goes_on = only_one or self._response_times.are_fast

    def close(self) -> None:
        """Close the idle connections."""
        with suppress(IndexError):
            while True:
                self._idle.pop().close()

    def _start(self) -> None:
        """Start without connections, at first and after a fork.

        A forked process must not use the connections of its parent, and does not have the threads of its parent.
        """
        self._process = os.getpid()
        self._resolver = Resolver()
        self._response_times = ResponseTimes()
        self._idle: deque[Connection] = deque()

    @contextmanager
    def _borrow_connection(self) -> Iterator[Connection]:
        """Take an idle connection from the stack, or make one, and put it back afterwards."""
        idle = self._idle
        try:
            connection = idle.pop()
        except IndexError:
            connection = Connection(
                self._resolver,
                public_only=self._public_only,
                proxy=self._proxy,
                ssl_context=self._ssl_context,
                client_context=self._client_context,
            )
        try:
            yield connection
        finally:
            idle.append(connection)
            _close_stale(idle)


def _close_stale(idle: deque[Connection]) -> None:
    """Close the connections at the bottom of the stack that are stale.

    Other threads may use the stack at the same time. Each operation of a deque is atomic, so no lock is needed.
    """
    with suppress(IndexError):
        while (oldest := idle.popleft()).is_stale:
            oldest.close()
        idle.appendleft(oldest)
