"""Events in the forms of CloudEvents 1.0, for receivers that know those."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from outbox.events.envelope import with_data
from outbox.events.event import Event

CONTENT_TYPE = "application/cloudevents+json; charset=utf-8"
DATA_CONTENT_TYPE = "application/json"

# What the HTTP binding leaves as it is: visible ASCII but for the quote and the percent sign.
_SAFE = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')


def attributes(event: Event, source: str) -> dict[str, Any]:
    """The context attributes; what the event does not have is left out."""
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
    """Everything in the body, as JSON."""
    return with_data(attributes(event, source), event.body)


def binary(event: Event, source: str) -> list[tuple[str, str]]:
    """The headers that go with the payload alone as the body."""
    described = attributes(event, source)
    content_type = described.pop("datacontenttype")
    return [("content-type", content_type), *((f"ce-{name}", _encoded(value)) for name, value in described.items())]


def _encoded(value: str) -> str:
    return quote(value, safe=_SAFE)
