"""The transport over libcurl: multi loops with open connections, kept between exchanges."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import suppress
from typing import TypeVar

from outbox.webhooks.transport.client_certificate import ClientCertificate
from outbox.webhooks.transport.libcurl.ca_certificates import CaCertificates
from outbox.webhooks.transport.libcurl.easy_handle import Route
from outbox.webhooks.transport.libcurl.multi_loop import MultiLoop
from outbox.webhooks.transport.protocol import SendResult, WebhookRequest
from outbox.webhooks.transport.resolver import Resolver
from outbox.webhooks.transport.url import Url

K = TypeVar("K")

# Loops that a forked process has from its parent. They are kept here so that they are never freed. Otherwise libcurl
# would send TLS closing messages over sockets that the parent still uses.
_inherited: list[deque[MultiLoop]] = []


class CurlTransport:
    """Sends requests with libcurl. Each exchange uses one loop; idle loops, with their connections, are in a stack."""

    def __init__(
        self,
        *,
        public_only: bool = False,
        proxy: Url | None = None,
        ca_certificates: CaCertificates | None = None,
        client_certificate: ClientCertificate | None = None,
    ) -> None:
        trusted = CaCertificates.default() if ca_certificates is None else ca_certificates
        self._route = Route(public_only, proxy, trusted, client_certificate)
        self._start()

    def exchange(
        self, requests: Iterator[tuple[K, WebhookRequest]], at_once: int
    ) -> Generator[tuple[K, SendResult], None, None]:
        """Send all requests and yield their results. See `Transport.exchange`."""
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
            if loop.is_idle:
                idle.append(loop)
            else:  # an exception has interrupted `_cancel`, so transfers are left
                loop.close()

    def close(self) -> None:
        """Close the idle loops and their connections."""
        with suppress(IndexError):
            while True:
                self._idle.pop().close()

    def _start(self) -> None:
        self._process = os.getpid()
        self._resolver = Resolver()
        self._idle: deque[MultiLoop] = deque()
