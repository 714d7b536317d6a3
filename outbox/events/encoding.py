"""Encode payloads and headers: from Python values to the exact JSON text that is stored and delivered.

`emit` calls this before any SQL. It raises InvalidEvent for a value that is not a JSON object, for NaN and infinities,
NUL, lone surrogates and naive datetimes, and for any type that has no JSON form. Each of them would otherwise fail
inside the caller's transaction, or at a consumer.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from outbox.errors import InvalidEvent
from outbox.events.fast_json import fast_encode
from outbox.text import shorten

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
    if not is_dict and not isinstance(value, Mapping) and not _has_fields(value):
        raise InvalidEvent(f"{field} must be a JSON object (a dict or a dataclass), not {_refused(value, field)}.")
    try:
        text = _encode(value if is_dict else _plain(value))
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        raise InvalidEvent(f"{field} contains a lone surrogate, which is not text that UTF-8 can carry.") from None
    except RecursionError:
        raise _too_deep(field) from None
    except (TypeError, ValueError) as error:
        part = _invalid_part(value, field) or field
        raise InvalidEvent(f"{part} can't be written as JSON: {error}.") from None
    if "\\u0000" in text and _ESCAPED_NUL.search(text):
        raise InvalidEvent(f"{field} contains a NUL character, which PostgreSQL can't store.")
    if text.count("{") + text.count("[") > DEEPEST and _depth(text) > DEEPEST:
        raise _too_deep(field)
    if size > limit:
        raise _too_long(field, size, limit)
    return text


def check_object(text: str, field: str, limit: int) -> None:
    """Raise InvalidEvent unless the text is a JSON object that `encode_object` could have returned.

    It is for objects that another program has encoded. White space, escapes and the order of keys may differ.
    """
    size = len(text) if text.isascii() else len(text.encode())
    if size > limit:
        raise _too_long(field, size, limit)
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    except RecursionError:
        raise _too_deep(field) from None
    except ValueError as error:
        raise InvalidEvent(f"{field} can't be read as JSON: {error}.") from None
    if not isinstance(value, dict):
        raise InvalidEvent(f"{field} must be a JSON object, not {_kind(value)}.")
    if "\\u" in text:  # without an escape, the text contains neither NUL nor a lone surrogate
        encode_object(value, field, limit)
    elif _depth(text) > DEEPEST:
        raise _too_deep(field)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number that JSON can carry")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {shorten(text, 30)} is too large")
    return number


def _invalid_part(value: Any, path: str) -> str | None:
    """Return where the first part without a JSON form is, as `payload['lines'][2]`, or None if there is none."""
    if _has_fields(value):
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


def _too_long(field: str, size: int, limit: int) -> InvalidEvent:
    return InvalidEvent(f"{field} is {size} bytes of JSON; the limit is {limit} (OUTBOX_MAX_PAYLOAD_BYTES).")


def _is_dataclass_instance(value: object) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _has_fields(value: object) -> bool:
    return _is_dataclass_instance(value) or _is_attrs_instance(value)


def _is_attrs_instance(value: object) -> bool:
    return hasattr(type(value), "__attrs_attrs__")


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
        case _ if _is_attrs_instance(value):
            plain = {field.name: getattr(value, field.name) for field in type(value).__attrs_attrs__}
        case _ if _is_dataclass_instance(value):
            plain = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        case _:
            advice = (
                "pass its model_dump(mode='json')" if is_pydantic(type(value)) else "make it a list, a text or a number"
            )
            raise TypeError(f"{_kind(value)} has no JSON form; {advice}")
    return plain


def is_pydantic(cls: type) -> bool:
    """Return whether a class is a Pydantic model or dataclass. (Pydantic is not imported to find that out.)"""
    return hasattr(cls, "__pydantic_validator__")


def _refused(value: object, field: str) -> str:
    """Describe a value that is not a JSON object; for a Pydantic model, also say what to do about it."""
    if not is_pydantic(type(value)):
        return _kind(value)
    return (
        f"the Pydantic model {_kind(value)}: pass {field}.model_dump(mode='json'), or declare the class with "
        "@outbox.event and emit the object itself"
    )


_ENCODER = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=_plain)


_encode = fast_encode(_ENCODER)
