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
    head: dict[str, Any] = {
        "id": event.id_text,
        "type": event.event_type,
        "aggregate_type": event.aggregate_type,
        "aggregate_id": event.aggregate_id,
        "time": event.created_at.isoformat(),
    }
    if event.tenant_id is not None:
        head["tenant_id"] = event.tenant_id
    if event.correlation_id is not None:
        head["correlation_id"] = event.correlation_id
    if event.ordering_key is not None:
        head["ordering_key"], head["seq"] = event.ordering_key, event.seq
    if event.has_headers and event.headers:
        head["headers"] = event.headers
    return head


def text_attributes(event: Event) -> dict[str, str]:
    """Return the members of `attributes` as texts: the headers as a JSON object, the rest as they are."""
    head = attributes(event)
    if "headers" in head:
        head["headers"] = _ENCODER.encode(head["headers"])
    return {name: str(value) for name, value in head.items()}


def as_dict(event: Event) -> dict[str, Any]:
    """Return the whole envelope: `attributes`, and the payload as `data`."""
    return attributes(event) | {"data": event.payload}


def as_json(event: Event) -> bytes:
    """Return the envelope as JSON text, with the payload exactly as it was emitted."""
    return with_data(attributes(event), event.body)


def with_data(head: dict[str, Any], body: bytes) -> bytes:
    """Return a JSON object of `head` and, as its last member, `data`: `body` is JSON text, and stays as it is."""
    return _ENCODER.encode(head).encode()[:-1] + b',"data":' + body + b"}"
