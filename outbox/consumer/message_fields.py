"""Read a message of a broker as the fields of an entry: the inverse of `buses/message.py`, for each of its formats.

The fields are texts by the names that a Redis stream's entry has. `entry.event_of` checks them. The payload stays as it
was published, to the byte.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from outbox.errors import InvalidMessage
from outbox.events.event_types import VERSION_HEADER

CLOUDEVENTS_TYPE = "application/cloudevents+json"
# The prefixes that CloudEvents' binding for AMQP allows.
CLOUDEVENTS_PREFIXES = ("cloudEvents_", "cloudEvents:")
NAMES = (
    "id", "type", "aggregate_type", "aggregate_id", "time", "tenant_id", "correlation_id", "ordering_key", "seq",
    "headers",
)  # fmt: skip
# The attributes of a CloudEvent, by the names of fields. (`subject`, `traceparent` and others need more than a name.)
ATTRIBUTES = {
    "id": "id",
    "type": "type",
    "time": "time",
    "tenantid": "tenant_id",
    "correlationid": "correlation_id",
    "partitionkey": "ordering_key",
    "sequence": "seq",
}
TRACE = ("traceparent", "tracestate")

Fields = dict[bytes, bytes]


def fields_of(headers: Mapping[str, Any], body: bytes, content_type: str | None, max_payload_bytes: int) -> Fields:
    """Return the fields of a message. Raise InvalidMessage if it has none of the formats."""
    try:
        return _fields_of(headers, body, content_type or "", max_payload_bytes)
    except (ValueError, RecursionError) as error:
        raise InvalidMessage(f"The message can't be read as an event: {error}") from None


def _fields_of(headers: Mapping[str, Any], body: bytes, content_type: str, max_payload_bytes: int) -> Fields:
    if content_type.partition(";")[0].strip().lower() == CLOUDEVENTS_TYPE:
        return _from_cloudevent(_members(body, max_payload_bytes))
    for prefix in CLOUDEVENTS_PREFIXES:
        if f"{prefix}specversion" in headers:
            attributes = {
                name.removeprefix(prefix): value for name, value in headers.items() if name.startswith(prefix)
            }
            return _from_cloudevent({name: _quoted(name, value) for name, value in attributes.items()}, body)
    if "aggregate_type" in headers:
        return {name.encode(): _text(name, headers[name]) for name in NAMES if name in headers} | {b"data": body}
    members = _members(body, max_payload_bytes)
    found = {name.encode(): _unquoted(name, members[name]) for name in NAMES if name in members}
    return found | {b"data": members.get("data", "").encode()}


def _from_cloudevent(members: Mapping[str, str], body: bytes | None = None) -> Fields:
    """Return the fields, given the JSON text of each attribute, and of `data` if the body is not the payload."""
    fields = {field.encode(): _unquoted(name, members[name]) for name, field in ATTRIBUTES.items() if name in members}
    if "subject" in members:
        fields[b"aggregate_type"], _, fields[b"aggregate_id"] = _unquoted("subject", members["subject"]).partition(b"/")
    headers = {name: json.loads(members[name]) for name in TRACE if name in members}
    if "eventversion" in members:
        headers[VERSION_HEADER] = int(_unquoted("eventversion", members["eventversion"]))
    if headers:
        fields[b"headers"] = json.dumps(headers).encode()
    if "data_base64" in members:
        raise ValueError("its data is not JSON")
    fields[b"data"] = members.get("data", "{}").encode() if body is None else body
    return fields


def _members(body: bytes, max_payload_bytes: int) -> dict[str, str]:
    """Return the JSON text of each member of an object: the value of `data` must stay as it was written."""
    most = 2 * max_payload_bytes + 10_000  # the payload, the headers, and the other attributes
    if len(body) > most:
        raise ValueError(f"it has {len(body)} bytes, and at most {most} are read")
    text = body.decode()
    decoder, skip = json.JSONDecoder(), json.decoder.WHITESPACE.match  # type: ignore[attr-defined]
    members: dict[str, str] = {}
    position = skip(text, 0).end()
    if text[position : position + 1] != "{":
        raise ValueError("it has no attributes as headers, and its body is not a JSON object")
    position = skip(text, position + 1).end()
    while text[position : position + 1] != "}":
        name, position = decoder.raw_decode(text, position)
        position = skip(text, position).end()
        if not isinstance(name, str) or text[position : position + 1] != ":":
            raise ValueError("its body is not a JSON object")
        start = skip(text, position + 1).end()
        _, end = decoder.raw_decode(text, start)
        members[name] = text[start:end]
        position = skip(text, end).end()
        if text[position : position + 1] == ",":
            position = skip(text, position + 1).end()
        elif text[position : position + 1] != "}":
            raise ValueError("its body is not a JSON object")
    return members


def _quoted(name: str, value: object) -> str:
    return json.dumps(_text(name, value).decode())


def _unquoted(name: str, text: str) -> bytes:
    """Return the value of a member as bytes: a string, a number, or the text of an object."""
    value = json.loads(text)
    if isinstance(value, dict):
        return text.encode()
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value).encode()
    return _text(name, value)


def _text(name: str, value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    raise ValueError(f"{name!r} is not text")
