"""HTTP/1.1 over httpcore, with connections that are kept between exchanges."""

from __future__ import annotations

import os
import ssl
import time
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from outbox.webhooks.transport.httpcore_threads.connection import Connection
from outbox.webhooks.transport.httpcore_threads.response_times import ResponseTimes
from outbox.webhooks.transport.httpcore_threads.thread_pool import ThreadPool
from outbox.webhooks.transport.protocol import SendResult, WebhookRequest
from outbox.webhooks.transport.resolver import Resolver
from outbox.webhooks.transport.url import Url

K = TypeVar("K")


class HttpcoreTransport:
    """A stack of senders: the one that was used last is used next, while its connection is still open."""

    def __init__(
        self,
        name: str,
        *,
        public_only: bool = False,
        proxy: Url | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._name = name
        self._public_only = public_only
        self._proxy = proxy
        self._ssl_context = ssl_context
        self._start()

    def exchange(
        self, requests: Iterator[tuple[K, WebhookRequest]], at_once: int
    ) -> Generator[tuple[K, SendResult], None, None]:
        if self._process != os.getpid():
            self._start()
        yield from self._exchange_here(requests, alone=at_once == 1)
        if at_once > 1:
            yield from ThreadPool[K](self._name, at_once, self._borrow, self._pace).exchange(requests)

    def _exchange_here(
        self, requests: Iterator[tuple[K, WebhookRequest]], *, alone: bool
    ) -> Generator[tuple[K, SendResult], None, None]:
        """In the caller's thread, one after the other: while the receiver is quick, or if there may be no more.

        To hand a request to another thread, and its answer back, takes as long as a quick receiver does. One that turns
        out to be slow has cost one request's time: the others go on side by side. A connection that has to be made is
        left to threads, since that may take a while.
        """
        with self._borrow() as sender:
            here = alone or (self._pace.is_quick and not sender.is_stale)
            while here and (taken := next(requests, None)) is not None:
                key, request = taken
                began_at = time.monotonic()
                answer = sender.send(request)
                self._pace.note(time.monotonic() - began_at)
                yield key, answer
                here = alone or self._pace.is_quick

    def close(self) -> None:
        with suppress(IndexError):
            while True:
                self._idle.pop().close()

    def _start(self) -> None:
        """Also after a fork: the parent's connections are the parent's, and its threads are not here."""
        self._process = os.getpid()
        self._resolver = Resolver()
        self._pace = ResponseTimes()
        self._idle: deque[Connection] = deque()

    @contextmanager
    def _borrow(self) -> Iterator[Connection]:
        idle = self._idle
        try:
            sender = idle.pop()
        except IndexError:
            sender = Connection(
                self._resolver, public_only=self._public_only, proxy=self._proxy, ssl_context=self._ssl_context
            )
        try:
            yield sender
        finally:
            idle.append(sender)
            _tidy(idle)


def _tidy(idle: deque[Connection]) -> None:
    """Close what nobody has needed for a while: those at the bottom, one deque operation at a time."""
    with suppress(IndexError):
        while (oldest := idle.popleft()).is_stale:
            oldest.close()
        idle.appendleft(oldest)
