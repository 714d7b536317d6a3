"""HTTP/1.1 over libcurl: all requests are under way in one thread, the caller's."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import suppress
from typing import TypeVar

from outbox.webhooks.transport.libcurl.ca_certificates import CaCertificates
from outbox.webhooks.transport.libcurl.multi_loop import MultiLoop
from outbox.webhooks.transport.libcurl.transfer import Route
from outbox.webhooks.transport.protocol import SendResult, WebhookRequest
from outbox.webhooks.transport.resolver import Resolver
from outbox.webhooks.transport.url import Url

K = TypeVar("K")

# What a process has from the one that it was forked from. To end it properly would be to say goodbye on connections
# that the other goes on using.
_inherited: list[deque[MultiLoop]] = []


class CurlTransport:
    """A stack of loops, with their connections: one for each exchange that is under way at the same time."""

    def __init__(
        self, *, public_only: bool = False, proxy: Url | None = None, authorities: CaCertificates | None = None
    ) -> None:
        self._route = Route(public_only, proxy, CaCertificates.default() if authorities is None else authorities)
        self._start()

    def exchange(
        self, requests: Iterator[tuple[K, WebhookRequest]], at_once: int
    ) -> Generator[tuple[K, SendResult], None, None]:
        if self._process != os.getpid():
            _inherited.append(self._idle)
            self._start()
        idle = self._idle
        try:
            loop = idle.pop()
        except IndexError:
            loop = MultiLoop(self._route, self._resolver)
        try:
            yield from loop.exchange(requests, at_once)
        finally:
            if loop.is_at_rest:
                idle.append(loop)
            else:  # interrupted once more while it was being put in order
                loop.close()

    def close(self) -> None:
        with suppress(IndexError):
            while True:
                self._idle.pop().close()

    def _start(self) -> None:
        self._process = os.getpid()
        self._resolver = Resolver()
        self._idle: deque[MultiLoop] = deque()
