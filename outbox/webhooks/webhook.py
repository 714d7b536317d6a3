"""Webhook: a destination that posts each event to a URL, signed as Standard Webhooks says.

For each event, `deliver` builds the request (`request_builder`), sends it (`transport/`), and decides what the response
means (`response_policy`).
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from outbox.destinations.event_filter import check_event_filter
from outbox.destinations.limits import Limits
from outbox.destinations.order_policy import OnFailed, check_order_policy
from outbox.destinations.outcome import Outcome, Retry
from outbox.destinations.protocol import Lease
from outbox.errors import describe
from outbox.events.event import Event
from outbox.webhooks.credentials import risks, texts_to_redact, with_authorization
from outbox.webhooks.option_checks import (
    CURL,
    HTTPX,
    check_client_certificate,
    check_concurrency,
    check_name,
    check_timeout,
    check_transport_options,
    signing_keys,
)
from outbox.webhooks.redaction import Redaction
from outbox.webhooks.request_builder import RequestBuilder
from outbox.webhooks.response_policy import ResponsePolicy
from outbox.webhooks.transport.headers import check_headers
from outbox.webhooks.transport.protocol import Transport, WebhookRequest
from outbox.webhooks.transport.proxy import choose_proxy
from outbox.webhooks.transport.url import Url

# Added to the timeout of a request: how long it may take to handle the response.
SPARE_SECONDS = 5.0


class Webhook:
    """A destination that posts events to a URL. A response with a status of 2xx means delivered.

    After any other response, or none, the event is sent again.

    `name`: the destination's name; the progress of events is stored under it, so it must not change.
    `url`: where to post to, over http or https; a user and a password in it are sent as Basic authentication.
    `secret`: the signing secret, from `outbox.webhooks.new_secret()`, or a list of secrets while you replace one. With
    None, requests are not signed.
    `events`: the event types to send: patterns such as "user.created", "user.*" or "*".
    `replaces`: the name, or the names, of destinations that this one replaces.
    `format`: "json", "cloudevents" (structured mode) or "cloudevents-binary".
    `source`: the `source` of CloudEvents; the format "json" does not send it.
    `token`: sent as `authorization: Bearer …`.
    `headers`: more headers for every request.
    `timeout`: seconds for a whole request, from resolving the name to the headers of the response.
    `concurrency`: how many requests may be in flight; see `outbox.Limits`.
    `per_second`: how many events may be sent per second; see `outbox.Limits`.
    `ordered`: whether it gets the events of an ordering key in order.
    `on_failed`: whether later events of an ordering key wait behind one that has failed: "block" or "skip".
    `allow_private`: False allows only public internet addresses, for URLs that your customers choose.
    `unavailable_on`: statuses that mean that the receiver is unavailable: the event is sent again and loses no attempt.
    `fail_on`: statuses after which the event has failed, and is not sent again.
    `response_excerpt`: whether an error has the beginning of the response's body, with secrets and values redacted.
    `proxy`: the URL of an HTTP proxy, or "environment" for HTTP_PROXY, HTTPS_PROXY and NO_PROXY; None: no proxy.
    `ssl_context`: for certificate authorities of your own; not with client="curl".
    `client_certificate`: a PEM file with the certificate and its chain that identify the sender (mutual TLS).
    `client_key`: a PEM file with its key, without a passphrase; None: it is in the file of the certificate.
    `client`: the HTTP library, "httpx" (its httpcore, in threads) or "curl" (libcurl's multi interface).
    `transport`: your own `Transport`, instead of those two.
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
        ordered: bool = True,
        on_failed: OnFailed = "block",
        allow_private: bool = True,
        unavailable_on: Collection[int] = (429, 502, 503, 504),
        fail_on: Collection[int] = (410,),
        response_excerpt: bool = True,
        proxy: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
        client_certificate: str | Path | None = None,
        client_key: str | Path | None = None,
        client: str = HTTPX,
        transport: Transport | None = None,
    ) -> None:
        self.name = check_name(name)
        self.limits = Limits(check_concurrency(concurrency), per_second)
        self.at_once = concurrency
        # How long a request counts in the concurrency limit if its end is never reported.
        self.hold_seconds = check_timeout(timeout) + SPARE_SECONDS
        self._timeout = timeout
        self.events = check_event_filter(events)
        self.replaces = replaces
        check_order_policy(name, ordered, on_failed)
        self.ordered, self.on_failed = ordered, on_failed
        self._url = Url.parse(url, "url")
        self._proxy = choose_proxy(proxy, self._url)
        own_headers = with_authorization(check_headers(headers), self._url, token)
        redaction = Redaction(texts_to_redact(own_headers, self._url, self._proxy))
        keys = signing_keys(secret)
        # Reported by a worker at its start, and by `outbox doctor`.
        self.risks = risks(own_headers, self._url, is_signed=bool(keys))
        self._request_builder = RequestBuilder(self._url, format, source, keys, own_headers)
        self._response_policy = ResponsePolicy(unavailable_on, fail_on, redaction, with_excerpt=response_excerpt)
        self._client_certificate = check_client_certificate(client_certificate, client_key, self._url, ssl_context)
        check_transport_options(
            transport,
            client,
            url=self._url,
            allow_private=allow_private,
            proxy=self._proxy,
            ssl_context=ssl_context,
            client_certificate=self._client_certificate,
        )
        self._public_only = not allow_private
        self._ssl_context = ssl_context
        self._client = client
        self._transport = transport
        self._lock = threading.Lock()

    def deliver(self, events: Iterable[Event], lease: Lease) -> Iterator[tuple[Event, Outcome]]:
        """Send each event and yield its outcome: `Retry` for an event whose request can't be built, and is not sent."""
        unsent: list[tuple[Event, Outcome]] = []
        requests = self._build_requests(events, lease, unsent)
        with closing(self.transport.exchange(requests, max(1, min(lease.at_once, self.at_once)))) as results:
            for event, result in results:
                yield event, self._response_policy.outcome(event, result, lease.now)
                while unsent:
                    yield unsent.pop()
        yield from unsent

    @property
    def transport(self) -> Transport:
        """Return the user's transport, or a built-in one, which is made at the first call: its imports take a while."""
        with self._lock:
            if self._transport is None:
                self._transport = self._make_transport()
            return self._transport

    def _make_transport(self) -> Transport:
        if self._client == CURL:
            from outbox.webhooks.transport.libcurl.transport import CurlTransport

            return CurlTransport(
                public_only=self._public_only, proxy=self._proxy, client_certificate=self._client_certificate
            )
        from outbox.webhooks.transport.httpcore_threads.transport import HttpcoreTransport

        return HttpcoreTransport(
            self.name,
            public_only=self._public_only,
            proxy=self._proxy,
            ssl_context=self._ssl_context,
            client_certificate=self._client_certificate,
        )

    def close(self) -> None:
        """Close the idle connections that are kept between deliveries. The webhook can still be used afterwards."""
        if self._transport is not None:
            self._transport.close()

    def _build_requests(
        self, events: Iterable[Event], lease: Lease, unsent: list[tuple[Event, Outcome]]
    ) -> Iterator[tuple[Event, WebhookRequest]]:
        """Yield the request of each event, when the transport takes it.

        An event whose request can't be built is added to `unsent`, with its outcome.
        """
        for event in events:
            ends_at = time.monotonic() + min(self._timeout, lease.seconds_left)
            try:
                request = self._request_builder.build(event, lease.now(), ends_at)
            except Exception as error:  # the other events must still be sent
                unsent.append((event, Retry(f"not sent: {describe(error)}")))
            else:
                yield event, request

    def __repr__(self) -> str:
        return f"<Webhook {self.name} {self._url}>"
