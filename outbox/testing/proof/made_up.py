"""Generate an event of a declared class from its JSON Schema, if no other event is there to try a handler with."""

from __future__ import annotations

import contextlib
from typing import Any

from outbox.events.event import Event
from outbox.events.event_types import EventType
from outbox.events.typed_payload import json_schema
from outbox.testing.event_by_hand import make_event

TEXTS = {
    "date-time": "2026-01-31T12:00:00+00:00",
    "date": "2026-01-31",
    "time": "12:00:00",
    "duration": "PT1H",
    "uuid": "0198c0de-0000-7000-8000-000000000000",
    "email": "someone@example.com",
    "uri": "https://example.com/",
    "decimal": "9.90",
}
# What any other text may be: the schema of a time without a time zone says no more than that it is text.
PLAIN_TEXTS = ("text", TEXTS["date-time"])
# How deep a class may contain itself.
DEPTH = 8


def made_up_event(declared: EventType) -> Event | None:
    """Return an event of this class, or None if no valid object of it could be generated."""
    for plain_text in PLAIN_TEXTS:
        with contextlib.suppress(Exception):  # whatever the class checks: then this is no value of it
            schema = json_schema(declared.cls)
            event = make_event(declared.cls, _Values(schema.get("$defs", {}), plain_text).of(schema, DEPTH))
            _ = event.data
            return event
    return None


class _Values:
    """Generates values for the schemas of one class."""

    def __init__(self, definitions: dict[str, Any], plain_text: str) -> None:
        self._definitions, self._plain_text = definitions, plain_text

    def of(self, schema: dict[str, Any], depth: int) -> Any:
        for key in ("default", "const"):
            if key in schema:
                return schema[key]
        for key in ("examples", "enum"):
            if schema.get(key):
                return schema[key][0]
        choices = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf") or []
        if "$ref" in schema:
            choices = [self._definitions[schema["$ref"].rpartition("/")[2]]]
        if depth == 0:
            return None
        if choices:
            # A Decimal is text with a pattern, or a number: the number is simpler.
            ranked = sorted(choices, key=lambda each: (each.get("type") == "null", "pattern" in each))
            return self.of(ranked[0], depth - 1)
        return self._of_type(schema, depth)

    def _of_type(self, schema: dict[str, Any], depth: int) -> Any:
        match schema.get("type"):
            case "object":
                needed, fields = schema.get("required", ()), schema.get("properties", {})
                return {name: self.of(each, depth - 1) for name, each in fields.items() if name in needed}
            case "array":
                return [self.of(schema.get("items", {}), depth - 1)] * schema.get("minItems", 0)
            case "string":
                return "1" if "pattern" in schema else self._text(schema)
            case "integer" | "number":
                return max(1, schema.get("minimum", 1), schema.get("exclusiveMinimum", 0) + 1)
            case kind:
                return True if kind == "boolean" else None

    def _text(self, schema: dict[str, Any]) -> str:
        least: int = schema.get("minLength", 1)
        return TEXTS.get(schema.get("format", ""), self._plain_text * (least // len(self._plain_text) + 1))
