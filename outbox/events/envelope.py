"""Make the envelope of an event: a JSON object of its id, its type, what it is about, and the payload as `data`.

Webhooks, streams and Dramatiq actors get it. It must be the same at every attempt, to the byte: so nothing here may
depend on the time, the worker or the number of the attempt.
"""

from __future__ import annotations

import json
from typing import Any

from outbox.events.event import Event

# Made once: with these options `json.dumps` would make a new encoder for every event.
_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)


def attributes(event: Event) -> dict[str, Any]:
    """Return all members of the envelope but the payload; those that the event does not have are left out."""
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
    """Return the whole envelope: `attributes`, and the payload as `data`."""
    return attributes(event) | {"data": event.payload}


def as_json(event: Event) -> bytes:
    """Return the envelope as JSON text, with the payload exactly as it was emitted."""
    return with_data(attributes(event), event.body)


def with_data(head: dict[str, Any], body: bytes) -> bytes:
    """Return a JSON object of `head` and, as its last member, `data`: `body` is JSON text, and stays as it is."""
    return _ENCODER.encode(head).encode()[:-1] + b',"data":' + body + b"}"
