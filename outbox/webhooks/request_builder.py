"""An event as a request: what is written, in which form, and signed by whom.

The body is the same at every attempt, to the byte. Of the headers, the timestamp and so the signature are not.
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
from outbox.webhooks.transport.headers import is_value
from outbox.webhooks.transport.protocol import WebhookRequest
from outbox.webhooks.transport.url import Url

Headers = list[tuple[str, str]]
Form = Callable[[Event, str], tuple[Headers, bytes]]

LONGEST_TRACE_STATE = 512
_TRACE_PARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_REFERENCE = re.compile(r"[\x21-\x7e]+")


class RequestBuilder:
    """Writes events for one receiver."""

    def __init__(
        self, url: Url, form: object, source: object, keys: list[SigningKey], headers: Mapping[str, str]
    ) -> None:
        if not isinstance(form, str) or form not in FORMS:
            raise RegistrationError(f"format must be one of {', '.join(map(repr, FORMS))}, not {form!r}.")
        if not isinstance(source, str) or not _REFERENCE.fullmatch(source):
            raise RegistrationError(f"source must be a URI or a path, such as '/orders', not {source!r}.")
        self._url = url
        self._form = FORMS[form]
        self._source = source
        self._keys = keys
        # Nothing that would have to be unpacked is wanted back.
        ours = {"user-agent": f"dramatiq-outbox/{__version__}", "accept-encoding": "identity", "accept": "*/*"}
        self._headers = tuple((ours | dict(headers)).items())

    def write(self, event: Event, now: datetime, ends_at: float) -> WebhookRequest:
        """`now` is the database's: a host whose clock is wrong signs what receivers accept."""
        headers, body = self._form(event, self._source)
        id, timestamp = event.id_text, str(int(now.timestamp()))
        headers += [("webhook-id", id), ("webhook-timestamp", timestamp)]
        if self._keys:
            signatures = [key.sign(id.encode(), timestamp.encode(), body).decode() for key in self._keys]
            headers.append(("webhook-signature", " ".join(signatures)))
        return WebhookRequest(self._url, (*headers, *_trace(event), *self._headers), body, ends_at)


def _json(event: Event, source: str) -> tuple[Headers, bytes]:
    return [("content-type", "application/json")], envelope.as_json(event)


def _structured(event: Event, source: str) -> tuple[Headers, bytes]:
    return [("content-type", cloudevents.CONTENT_TYPE)], cloudevents.structured(event, source)


def _binary(event: Event, source: str) -> tuple[Headers, bytes]:
    return cloudevents.binary(event, source), event.body


FORMS: dict[str, Form] = {"json": _json, "cloudevents": _structured, "cloudevents-binary": _binary}


def _trace(event: Event) -> Headers:
    """The trace that the event was emitted in goes on at the receiver: as its delivery, if somebody traces that.

    A state means nothing without its parent.
    """
    if event.span is not None:
        return [(name, value) for name, value in tracing.inject(event.span).items() if is_value(value)]
    parent, state = event.headers.get("traceparent"), event.headers.get("tracestate")
    if not isinstance(parent, str) or not _TRACE_PARENT.fullmatch(parent):
        return []
    headers = [("traceparent", parent)]
    if isinstance(state, str) and is_value(state) and len(state) <= LONGEST_TRACE_STATE:
        headers.append(("tracestate", state))
    return headers
