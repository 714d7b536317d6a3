"""Compare an event with the one that a test expects, part by part."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from outbox.errors import InvalidEvent
from outbox.events.encoding import encode_object
from outbox.storage.models import OutboxEvent

# An expected payload may be longer than emit accepts: then no event matches it.
NO_LIMIT = 1 << 40
# In the search for the most similar event, a difference outside the payload counts as this many inside it.
WRONG_TYPE, WRONG_AGGREGATE = 100, 10


class Missing:
    def __repr__(self) -> str:
        return "nothing"


MISSING = Missing()


@dataclass(frozen=True)
class Difference:
    """One part of an event that is not as expected."""

    path: str
    expected: object
    actual: object
    weight: int = 1

    def __str__(self) -> str:
        return f"{self.path}: expected {_shown(self.expected)}, got {_shown(self.actual)}"


@dataclass(frozen=True)
class Expected:
    """What a test expects of an event. None means that anything is right."""

    event_type: str
    aggregate: tuple[str, str] | None = None
    payload: Any = None
    headers: Any = None
    # Other columns of the event, by name.
    fields: Mapping[str, object] = field(default_factory=dict)

    def differences(self, event: OutboxEvent) -> list[Difference]:
        """Return every part of the event that is not as expected."""
        return list(self._differences(event))

    def _differences(self, event: OutboxEvent) -> Iterator[Difference]:
        if event.event_type != self.event_type:
            yield Difference("type", self.event_type, event.event_type, WRONG_TYPE)
        found = (event.aggregate_type, event.aggregate_id)
        if self.aggregate is not None and found != self.aggregate:
            yield Difference("aggregate", self.aggregate, found, WRONG_AGGREGATE)
        if self.payload is not None:
            yield from differences(as_stored(self.payload), event.payload, "payload")
        if self.headers is not None:
            yield from differences(as_stored(self.headers), event.headers, "headers")
        for name, value in self.fields.items():
            if value is not None and getattr(event, name) != value:
                yield Difference(name, value, getattr(event, name))

    def __str__(self) -> str:
        parts = [self.event_type]
        if self.aggregate is not None:
            parts.append(":".join(self.aggregate))
        parts += [f"{name}={_shown(as_stored(value))}" for name, value in self._given() if value is not None]
        return "  ".join(parts)

    def _given(self) -> Iterator[tuple[str, object]]:
        yield "payload", self.payload
        yield "headers", self.headers
        yield from self.fields.items()


def as_stored(value: Any) -> Any:
    """Return a value as it is in a payload that was stored: UUIDs, dates and amounts are text there.

    What has no JSON form stays as it is: it may be an object that compares itself, such as `unittest.mock.ANY`.
    """
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else str(key): as_stored(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [as_stored(each) for each in value]
    try:
        return json.loads(encode_object({"value": value}, "payload", NO_LIMIT))["value"]
    except InvalidEvent:
        return value


def differences(expected: Any, actual: Any, path: str) -> Iterator[Difference]:
    """Yield where `actual` lacks something that is expected. More keys than are expected are no difference."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        for key, value in expected.items():
            yield from differences(value, actual.get(key, MISSING), f"{path}.{key}")
    elif isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        for number, value in enumerate(expected):
            yield from differences(value, actual[number], f"{path}[{number}]")
    elif expected != actual or (isinstance(actual, bool) and expected in (0, 1) and expected is not actual):
        yield Difference(path, expected, actual)


def _shown(value: object) -> str:
    return ":".join(map(str, value)) if isinstance(value, tuple) else repr(value)
