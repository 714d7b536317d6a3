"""Build the HTTP request that carries an event: its body, its headers, its signatures.

The body is the same in every attempt, to the byte. The timestamp header, and so the signature, is new in each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime

from outbox.errors import RegistrationError
from outbox.events import cloudevents, envelope
from outbox.events.event import Event
from outbox.telemetry import tracing
from outbox.version import __version__
from outbox.webhooks.signature import SigningKey
from outbox.webhooks.transport.headers import is_header_value
from outbox.webhooks.transport.protocol import WebhookRequest
from outbox.webhooks.transport.url import Url

Headers = list[tuple[str, str]]
# Gets the event and the `source` of CloudEvents; returns the headers of the format, such as the content type, and the
# body.
Format = Callable[[Event, str], tuple[Headers, bytes]]

# W3C Trace Context requires that at least this many characters are sent. A longer tracestate is left out.
LONGEST_TRACE_STATE = 512
_TRACE_PARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


class RequestBuilder:
    """Builds the requests of one webhook. `Webhook` calls `build` for each event that it sends."""

    def __init__(
        self, url: Url, format: object, source: object, keys: list[SigningKey], headers: Mapping[str, str]
    ) -> None:
        if not isinstance(format, str) or format not in FORMATS:
            raise RegistrationError(f"format must be one of {', '.join(map(repr, FORMATS))}, not {format!r}.")
        self._url = url
        self._format = FORMATS[format]
        self._source = cloudevents.check_source(source)
        self._keys = keys
        # `identity` asks for an uncompressed body, because response bodies are not decompressed.
        defaults = {"user-agent": f"dramatiq-outbox/{__version__}", "accept-encoding": "identity", "accept": "*/*"}
        self._headers = tuple((defaults | dict(headers)).items())

    def build(self, event: Event, now: datetime, ends_at: float) -> WebhookRequest:
        """Return the signed request for an event.

        `now` is the time by the database's clock: receivers accept only recent timestamps, and this host's clock may
        be wrong. `ends_at` is the request's deadline, by `time.monotonic()`.
        """
        headers, body = self._format(event, self._source)
        id, timestamp = event.id_text, str(int(now.timestamp()))
        headers += [("webhook-id", id), ("webhook-timestamp", timestamp)]
        if event.ordering_key is not None:
            headers.append(("outbox-seq", str(event.seq)))
        if self._keys:
            signatures = [key.sign(id.encode(), timestamp.encode(), body).decode() for key in self._keys]
            headers.append(("webhook-signature", " ".join(signatures)))
        return WebhookRequest(self._url, (*headers, *_trace_headers(event), *self._headers), body, ends_at)


def _json(event: Event, source: str) -> tuple[Headers, bytes]:
    return [("content-type", "application/json")], envelope.as_json(event)


def _structured(event: Event, source: str) -> tuple[Headers, bytes]:
    return [("content-type", cloudevents.CONTENT_TYPE)], cloudevents.structured(event, source)


def _binary(event: Event, source: str) -> tuple[Headers, bytes]:
    return cloudevents.binary(event, source), event.body


FORMATS: dict[str, Format] = {"json": _json, "cloudevents": _structured, "cloudevents-binary": _binary}


def _trace_headers(event: Event) -> Headers:
    """Return the headers `traceparent` and `tracestate`, with which the receiver continues the event's trace.

    If this delivery is traced, they name its span. Otherwise they are copied from the event's own headers, the
    tracestate only together with a valid traceparent.
    """
    if event.span is not None:
        return [(name, value) for name, value in tracing.inject(event.span).items() if is_header_value(value)]
    if not event.has_headers:
        return []
    parent, state = event.headers.get("traceparent"), event.headers.get("tracestate")
    if not isinstance(parent, str) or not _TRACE_PARENT.fullmatch(parent):
        return []
    headers = [("traceparent", parent)]
    if isinstance(state, str) and is_header_value(state) and len(state) <= LONGEST_TRACE_STATE:
        headers.append(("tracestate", state))
    return headers
