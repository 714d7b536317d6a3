"""Make the message for an event: its headers and its body, in one of four formats.

    headers              the attributes as headers, with the names of the fields of a Redis stream's entry; the body is
                         the payload, in the bytes that were stored
    json                 the body is the envelope, as webhooks send it
    cloudevents          the body is a CloudEvent as JSON (structured mode)
    cloudevents-binary   the attributes of a CloudEvent as headers, with the prefix of the broker's binding; the body is
                         the payload

If the delivery is traced, the headers `traceparent` and `tracestate` name its span, in every format.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from outbox.errors import RegistrationError
from outbox.events import cloudevents, envelope
from outbox.events.event import Event
from outbox.telemetry import tracing

HEADERS, JSON, CLOUDEVENTS, CLOUDEVENTS_BINARY = "headers", "json", "cloudevents", "cloudevents-binary"
FORMATS = (HEADERS, JSON, CLOUDEVENTS, CLOUDEVENTS_BINARY)


@dataclass(frozen=True, slots=True)
class Message:
    """The content that is published for an event, without its address at the broker."""

    headers: dict[str, str]
    body: bytes
    content_type: str = cloudevents.DATA_CONTENT_TYPE


class MessageFormat:
    """Makes the messages of one destination. `prefix` stands before the attributes of a CloudEvent in binary mode."""

    def __init__(self, format: object, source: object, *, prefix: str | None) -> None:
        formats: dict[str, Callable[[Event], Message]] = {
            HEADERS: _with_headers,
            JSON: _with_envelope,
            CLOUDEVENTS: self._structured,
        }
        if prefix is not None:
            formats[CLOUDEVENTS_BINARY] = self._binary
        if not isinstance(format, str) or format not in formats:
            raise RegistrationError(f"format must be one of {', '.join(map(repr, formats))}, not {format!r}.")
        self._source, self._prefix = cloudevents.check_source(source), prefix
        self._make = formats[format]

    def make(self, event: Event) -> Message:
        """Return the message for an event."""
        message = self._make(event)
        if event.span is not None:
            message.headers.update(tracing.inject(event.span))
        return message

    def _structured(self, event: Event) -> Message:
        return Message({}, cloudevents.structured(event, self._source), cloudevents.CONTENT_TYPE)

    def _binary(self, event: Event) -> Message:
        attributes = cloudevents.attributes(event, self._source)
        content_type = attributes.pop("datacontenttype")
        headers = {f"{self._prefix}{name}": value for name, value in attributes.items()}
        return Message(headers, event.body, content_type)


def _with_headers(event: Event) -> Message:
    return Message(envelope.text_attributes(event), event.body)


def _with_envelope(event: Event) -> Message:
    return Message({"id": event.id_text, "type": event.event_type}, envelope.as_json(event))
