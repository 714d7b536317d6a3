"""A URL as a destination: each event is posted to it, signed as Standard Webhooks has it."""

from __future__ import annotations

import importlib.util
import math
import ssl
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing

from outbox.destinations.event_filter import check_event_filter
from outbox.destinations.limits import Limits
from outbox.destinations.outcome import Outcome, Retry
from outbox.destinations.protocol import Lease
from outbox.errors import RegistrationError, describe
from outbox.events.event import Event
from outbox.webhooks.credentials import confidential, with_authorization
from outbox.webhooks.redaction import Redaction
from outbox.webhooks.request_builder import RequestBuilder
from outbox.webhooks.response_policy import ResponsePolicy
from outbox.webhooks.signature import SigningKey, read_keys
from outbox.webhooks.transport import headers as header
from outbox.webhooks.transport.protocol import Transport, WebhookRequest
from outbox.webhooks.transport.proxy import choose_proxy
from outbox.webhooks.transport.url import Url

HTTPX, CURL = "httpx", "curl"
# Beyond one request's time: for what its answer leads to.
SPARE_SECONDS = 5.0


class Webhook:
    """Posts events to a URL. 2xx is delivered; any other answer is tried again, as is none.

    `replaces`: the names of destinations whose place it takes.
    `secret`: one that `outbox.webhooks.new_secret` made, or several while one is replaced by another. `format`:
    "json", "cloudevents" or "cloudevents-binary". `token`: sent as a bearer. `timeout`: seconds for everything, from
    resolving the name to the answer. `concurrency` and `per_second`: see `outbox.Limits`. `allow_private=False`: only
    addresses of the public internet, for URLs that others have chosen. `unavailable_on`: statuses that cost no
    attempt. `fail_on`: statuses after which there is no other. `proxy`: a URL, or "environment". `client`: what speaks
    HTTP, "httpx" or "curl".
    """

    def __init__(
        self,
        name: str,
        url: str,
        *,
        secret: str | Sequence[str] | None = None,
        events: Sequence[str] = ("*",),
        replaces: str | Sequence[str] = (),
        format: str = "json",
        source: str = "/outbox",
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 15.0,
        concurrency: int = 8,
        per_second: float | None = None,
        allow_private: bool = True,
        unavailable_on: Collection[int] = (429, 502, 503, 504),
        fail_on: Collection[int] = (410,),
        proxy: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
        client: str = HTTPX,
        transport: Transport | None = None,
    ) -> None:
        self.name = _check_name(name)
        self.limits = Limits(_check_concurrency(concurrency), per_second)
        self.at_once = concurrency
        self.hold_seconds = _check_timeout(timeout) + SPARE_SECONDS
        self._timeout = timeout
        self.events = check_event_filter(events)
        self.replaces = replaces
        self._url = Url.parse(url, "url")
        self._proxy = choose_proxy(proxy, self._url)
        own = with_authorization(header.check(headers), self._url, token)
        self._writer = RequestBuilder(self._url, format, source, _keys(secret), own)
        self._judge = ResponsePolicy(unavailable_on, fail_on, Redaction(confidential(own, self._url, self._proxy)))
        _check_route(allow_private, proxy, ssl_context)
        if transport is None:
            _check_client(client, ssl_context)
        elif not allow_private or proxy is not None or ssl_context is not None or client != HTTPX:
            raise RegistrationError(
                "allow_private, proxy, ssl_context and client are for our own transport, not for one you pass."
            )
        self._public_only = not allow_private
        self._ssl_context = ssl_context
        self._client = client
        self._transport = transport
        self._lock = threading.Lock()

    def deliver(self, events: Iterable[Event], lease: Lease) -> Iterator[tuple[Event, Outcome]]:
        """Write each event, send it, judge the answer. An event that can't be written is judged without sending it."""
        unwritten: list[tuple[Event, Outcome]] = []
        requests = self._write(events, lease, unwritten)
        with closing(self.transport.exchange(requests, max(1, min(lease.at_once, self.at_once)))) as answers:
            for event, answer in answers:
                yield event, self._judge.outcome(answer, lease.now)
                while unwritten:
                    yield unwritten.pop()
        yield from unwritten

    @property
    def transport(self) -> Transport:
        """What was given, or one of our own, made with the first delivery: what it needs takes a while to import."""
        with self._lock:
            if self._transport is None:
                self._transport = self._own_transport()
            return self._transport

    def _own_transport(self) -> Transport:
        if self._client == CURL:
            from outbox.webhooks.transport.libcurl.transport import CurlTransport

            return CurlTransport(public_only=self._public_only, proxy=self._proxy)
        from outbox.webhooks.transport.httpcore_threads.transport import HttpcoreTransport

        return HttpcoreTransport(
            self.name, public_only=self._public_only, proxy=self._proxy, ssl_context=self._ssl_context
        )

    def close(self) -> None:
        """Close the connections that are kept between deliveries; for those who count them."""
        if self._transport is not None:
            self._transport.close()

    def _write(
        self, events: Iterable[Event], lease: Lease, unwritten: list[tuple[Event, Outcome]]
    ) -> Iterator[tuple[Event, WebhookRequest]]:
        for event in events:
            ends_at = time.monotonic() + min(self._timeout, lease.seconds_left)
            try:
                request = self._writer.write(event, lease.now(), ends_at)
            except Exception as error:  # one that can't be written must not stop the others
                unwritten.append((event, Retry(f"not sent: {describe(error)}")))
            else:
                yield event, request

    def __repr__(self) -> str:
        return f"<Webhook {self.name} {self._url}>"


def _check_name(name: object) -> str:
    if not isinstance(name, str) or not name.strip():
        raise RegistrationError("A webhook needs a name, which its progress is kept by: Webhook('billing', …).")
    return name


def _check_concurrency(value: object) -> int:
    if not isinstance(value, int):
        raise RegistrationError(f"concurrency must be a whole number from 1 on, not {value!r}.")
    return value


def _check_timeout(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not (0 < value < math.inf):
        raise RegistrationError(f"timeout must be a number of seconds greater than 0, not {value!r}.")
    return value


def _keys(secret: object) -> list[SigningKey]:
    if secret is None:
        return []
    try:
        return read_keys(secret)
    except ValueError as error:
        raise RegistrationError(f"It can't be signed: {error}. outbox.webhooks.new_secret() makes one.") from None


def _check_route(allow_private: bool, proxy: object, ssl_context: object) -> None:
    if not isinstance(ssl_context, ssl.SSLContext | None):
        raise RegistrationError("ssl_context must be an ssl.SSLContext.")
    if not allow_private and proxy is not None:
        raise RegistrationError("allow_private=False can't be kept through a proxy, which resolves names itself.")


def _check_client(client: object, ssl_context: object) -> None:
    if client == CURL:
        if ssl_context is not None:
            raise RegistrationError(
                "ssl_context is Python's, and client='curl' can't use it: name a file with your authorities in the "
                "variable SSL_CERT_FILE, or take client='httpx'."
            )
        _check_installed("client='curl' needs pycurl", "curl", "pycurl")
    elif client == HTTPX:
        _check_installed("Webhooks need httpx", "webhooks", "httpx", "httpcore")
    else:
        raise RegistrationError(f"client must be {HTTPX!r} or {CURL!r}, not {client!r}.")


def _check_installed(said: str, extra: str, *packages: str) -> None:
    if any(importlib.util.find_spec(package) is None for package in packages):
        raise RegistrationError(f"{said}: pip install 'dramatiq-outbox[{extra}]'.")
