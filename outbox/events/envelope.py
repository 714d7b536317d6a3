"""What stands around a payload when an event leaves: its id, its type, what it is about.

The same at every attempt, to the byte: nothing here may depend on when, by whom or how often an event is sent.
"""

from __future__ import annotations

import json
from typing import Any

from outbox.events.event import Event

# Made once: `json.dumps` would make it anew for every event.
_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)


def attributes(event: Event) -> dict[str, Any]:
    """All but the payload, as JSON has it; what the event does not have is left out."""
    known = {
        "id": event.id_text,
        "type": event.event_type,
        "aggregate_type": event.aggregate_type,
        "aggregate_id": event.aggregate_id,
        "time": event.created_at.isoformat(),
        "tenant_id": event.tenant_id,
        "correlation_id": event.correlation_id,
        "headers": event.headers if event.has_headers else None,
    }
    return {name: value for name, value in known.items() if value is not None and value != {}}


def as_dict(event: Event) -> dict[str, Any]:
    """The whole envelope: `attributes`, and the payload as `data`."""
    return attributes(event) | {"data": event.payload}


def as_json(event: Event) -> bytes:
    """The envelope as JSON text, with the payload exactly as it was emitted."""
    return with_data(attributes(event), event.body)


def with_data(head: dict[str, Any], body: bytes) -> bytes:
    """A JSON object of `head` and, as its last member, `data`: already JSON, and left as it is."""
    return _ENCODER.encode(head).encode()[:-1] + b',"data":' + body + b"}"
