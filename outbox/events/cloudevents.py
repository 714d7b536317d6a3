"""Write events as CloudEvents 1.0: everything in a JSON body (structured), or attributes as HTTP headers (binary)."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

from outbox.errors import RegistrationError
from outbox.events.envelope import with_data
from outbox.events.event import Event
from outbox.events.event_types import VERSION_HEADER

CONTENT_TYPE = "application/cloudevents+json; charset=utf-8"
DATA_CONTENT_TYPE = "application/json"

# The extension `sequence` is text that is compared as text. This is the width of the largest number.
SEQUENCE_DIGITS = 19

# The characters that the HTTP binding does not encode: visible ASCII without the quote and the percent sign.
_SAFE = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')

_URI_REFERENCE = re.compile(r"[\x21-\x7e]+")


def check_source(source: object) -> str:
    """Return the attribute `source` of a destination's CloudEvents, if it is valid."""
    if not isinstance(source, str) or not _URI_REFERENCE.fullmatch(source):
        raise RegistrationError(f"source must be a URI or a path, such as '/orders', not {source!r}.")
    return source


def attributes(event: Event, source: str) -> dict[str, Any]:
    """Return the context attributes; those that the event does not have are left out."""
    known = {
        "specversion": "1.0",
        "id": event.id_text,
        "source": source,
        "type": event.event_type,
        "subject": f"{event.aggregate_type}/{event.aggregate_id}",
        "time": event.created_at.isoformat(),
        "datacontenttype": DATA_CONTENT_TYPE,
        "tenantid": event.tenant_id,
        "correlationid": event.correlation_id,
        "partitionkey": event.ordering_key,
        "sequence": None if event.ordering_key is None else f"{event.seq:0{SEQUENCE_DIGITS}}",
        "eventversion": _version(event),
        "traceparent": event.headers.get("traceparent"),
        "tracestate": event.headers.get("tracestate"),
    }
    return {name: value for name, value in known.items() if isinstance(value, str) and value}


def _version(event: Event) -> str | None:
    """Return the version of a typed event (`outbox.event`) as text."""
    version = event.headers.get(VERSION_HEADER)
    return str(version) if isinstance(version, int) else None


def structured(event: Event, source: str) -> bytes:
    """Return the body of structured mode: all attributes and the payload, as JSON."""
    return with_data(attributes(event, source), event.body)


def binary(event: Event, source: str) -> list[tuple[str, str]]:
    """Return the headers of binary mode; the body is the payload alone."""
    described = attributes(event, source)
    content_type = described.pop("datacontenttype")
    return [("content-type", content_type), *((f"ce-{name}", encoded(value)) for name, value in described.items())]


def encoded(value: str) -> str:
    """Return the value with everything but visible ASCII percent-encoded, as the HTTP binding does."""
    return quote(value, safe=_SAFE)
