"""Encode payloads and headers: from Python values to the exact JSON text that is stored and delivered.

`emit` calls this before any SQL. It raises InvalidEvent for a value that is not a JSON object, for NaN and infinities,
NUL, lone surrogates and naive datetimes, and for any type that has no JSON form. Each of them would otherwise fail
inside the caller's transaction, or at a consumer.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from outbox.errors import InvalidEvent
from outbox.events.fast_json import fast_encode

EMPTY = "{}"

# The deepest nesting, which every parser of a consumer should be able to read. The limits of Python's and the
# databases' parsers are much higher, and depend on how much of the stack is in use.
DEEPEST = 100
_BRACKETS_AND_STRINGS = re.compile(r'[\[\]{}]|"[^"\\]*(?:\\.[^"\\]*)*"')

# An escaped NUL, not preceded by a backslash that is itself escaped.
_ESCAPED_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def encode_object(value: object, field: str, limit: int) -> str:
    """Return the JSON text of a mapping or dataclass; None is the empty object.

    Raise InvalidEvent if it has no JSON form that can be stored, or is longer than `limit` bytes.
    """
    if value is None:
        return EMPTY
    is_dict = isinstance(value, dict)
    if not is_dict and not isinstance(value, Mapping) and not _is_dataclass_instance(value):
        raise InvalidEvent(f"{field} must be a JSON object (a dict or a dataclass), not {_kind(value)}.")
    try:
        text = _encode(value if is_dict else _plain(value))
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        raise InvalidEvent(f"{field} contains a lone surrogate, which is not text that UTF-8 can carry.") from None
    except RecursionError:
        raise _too_deep(field) from None
    except (TypeError, ValueError) as error:
        raise InvalidEvent(f"{_invalid_part(value, field) or field} can't be written as JSON: {error}.") from None
    if "\\u0000" in text and _ESCAPED_NUL.search(text):
        raise InvalidEvent(f"{field} contains a NUL character, which PostgreSQL can't store.")
    if text.count("{") + text.count("[") > DEEPEST and _depth(text) > DEEPEST:
        raise _too_deep(field)
    if size > limit:
        raise InvalidEvent(f"{field} is {size} bytes of JSON; the limit is {limit} (OUTBOX_MAX_PAYLOAD_BYTES).")
    return text


def _invalid_part(value: Any, path: str) -> str | None:
    """Return where the first part without a JSON form is, as `payload['lines'][2]`, or None if there is none."""
    if _is_dataclass_instance(value):
        value = _plain(value)
    if isinstance(value, Mapping):
        parts = [(f"{path}[{key!r}]", part) for key, part in value.items()]
    elif isinstance(value, list | tuple):
        parts = [(f"{path}[{index}]", part) for index, part in enumerate(value)]
    else:
        return None if _has_json_form(value) else path
    try:
        return next((found for at, part in parts if (found := _invalid_part(part, at))), None)
    except RecursionError:  # it contains itself
        return None


def _has_json_form(value: object) -> bool:
    try:
        _ENCODER.encode(value)
    except (TypeError, ValueError):
        return False
    return True


def _depth(text: str) -> int:
    """Return how deeply the JSON text is nested; brackets inside strings don't count."""
    depth = deepest = 0
    for piece in _BRACKETS_AND_STRINGS.findall(text):
        if piece in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif piece in "]}":
            depth -= 1
    return deepest


def _too_deep(field: str) -> InvalidEvent:
    return InvalidEvent(f"{field} is nested too deeply; the limit is {DEEPEST} levels.")


def _is_dataclass_instance(value: object) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _kind(value: object) -> str:
    return type(value).__name__


def _plain(value: Any) -> Any:
    """Convert a value to a type that JSON has; raise TypeError or ValueError if that is not possible."""
    plain: Any
    match value:
        case datetime() if value.tzinfo is None:
            raise ValueError(f"the datetime {value} has no timezone (use datetime.now(UTC))")
        case datetime() | date():
            plain = value.isoformat()
        case Decimal() if not value.is_finite():
            raise ValueError(f"Decimal('{value}') is not a number that JSON can carry")
        case UUID() | Decimal():
            plain = str(value)  # an amount as text: a float would change it
        case Enum():
            plain = value.value
        case Mapping():
            plain = dict(value)
        case _ if _is_dataclass_instance(value):
            plain = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        case _:
            raise TypeError(f"{_kind(value)} has no JSON form; make it a list, a text or a number")
    return plain


_ENCODER = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=_plain)


_encode = fast_encode(_ENCODER)
