"""Write events as CloudEvents 1.0: everything in a JSON body (structured), or attributes as HTTP headers (binary)."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from outbox.events.envelope import with_data
from outbox.events.event import Event

CONTENT_TYPE = "application/cloudevents+json; charset=utf-8"
DATA_CONTENT_TYPE = "application/json"

# The characters that the HTTP binding does not encode: visible ASCII without the quote and the percent sign.
_SAFE = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')


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
        "traceparent": event.headers.get("traceparent"),
        "tracestate": event.headers.get("tracestate"),
    }
    return {name: value for name, value in known.items() if isinstance(value, str) and value}


def structured(event: Event, source: str) -> bytes:
    """Return the body of structured mode: all attributes and the payload, as JSON."""
    return with_data(attributes(event, source), event.body)


def binary(event: Event, source: str) -> list[tuple[str, str]]:
    """Return the headers of binary mode; the body is the payload alone."""
    described = attributes(event, source)
    content_type = described.pop("datacontenttype")
    return [("content-type", content_type), *((f"ce-{name}", _encoded(value)) for name, value in described.items())]


def _encoded(value: str) -> str:
    return quote(value, safe=_SAFE)
