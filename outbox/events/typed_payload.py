"""Read a payload's JSON as an object of a declared class, and describe the class as JSON Schema.

Dataclasses, attrs classes and TypedDicts are read by msgspec (the extra `typed`), Pydantic models by Pydantic (the
extra `pydantic`). Each is imported when the first class that needs it is read: a process that only emits needs neither.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from outbox.errors import RegistrationError
from outbox.events.encoding import is_pydantic

Decoder = Callable[[str], Any]

# The root of a path, as JSONPath and msgspec write it: "$.lines[0].price".
ROOT = "$"
_PATH = re.compile(r"(?s)(.*) - at `(\$.*)`")
_MISSING = re.compile(r"Object missing required field `(.+)`")
_NAME = re.compile(r"[A-Za-z_][\w-]*")
_QUOTED_VALUE = re.compile(r"(?s)Invalid enum value .*")


class Undecodable(ValueError):
    """The payload does not fit the class. `path` says where.

    The text contains no value of the payload, unless a validator of the class has put it there.
    """

    def __init__(self, path: str, problem: str) -> None:
        self.path = path
        super().__init__(problem)


def is_declarable(cls: object) -> bool:
    """Return whether a class is of a kind that can be an event type."""
    return isinstance(cls, type) and (
        is_pydantic(cls) or dataclasses.is_dataclass(cls) or hasattr(cls, "__attrs_attrs__") or is_typed_dict(cls)
    )


def is_typed_dict(cls: type) -> bool:
    """Return whether a class is a TypedDict, of `typing` or of `typing_extensions`."""
    return issubclass(cls, dict) and hasattr(cls, "__required_keys__")


def make_decoder(cls: type) -> Decoder:
    """Return a function that reads the JSON text of a payload; it raises Undecodable."""
    return _pydantic_decoder(cls) if is_pydantic(cls) else _msgspec_decoder(cls)


def json_schema(cls: type) -> dict[str, Any]:
    """Return the JSON Schema of a class, with what it refers to below `$defs`."""
    if is_pydantic(cls):
        return dict(_type_adapter(cls).json_schema(mode="serialization"))
    return dict(_msgspec().json.schema(cls))


def encodable(cls: type, value: object) -> object:
    """Return the value as the encoder of payloads takes it: the JSON form that a Pydantic model defines for itself."""
    if is_pydantic(cls) and isinstance(value, cls):
        return _type_adapter(cls).dump_python(value, mode="json", by_alias=True)
    return value


@cache
def _type_adapter(cls: type) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(cls)


def _msgspec() -> Any:
    try:
        import msgspec
    except ImportError:
        raise RegistrationError(
            "msgspec is not installed, which reads typed events: pip install 'dramatiq-outbox[typed]'"
        ) from None
    return msgspec


def _msgspec_decoder(cls: type) -> Decoder:
    msgspec = _msgspec()
    decoder = msgspec.json.Decoder(cls)

    def decode(text: str) -> Any:
        try:
            return decoder.decode(text)
        except msgspec.DecodeError as error:  # ValidationError is one
            raise _undecodable(str(error)) from None

    return decode


def _undecodable(message: str) -> Undecodable:
    """Take msgspec's message apart: "Expected `int`, got `str` - at `$.lines[0].count`"."""
    found = _PATH.fullmatch(message)
    problem, path = (found[1], found[2]) if found is not None else (message, ROOT)
    missing = _MISSING.fullmatch(problem)
    if missing is not None:
        return Undecodable(f"{path}.{missing[1]}", "is missing")
    return Undecodable(path, _QUOTED_VALUE.sub("is none of the values that are allowed", problem))


def _pydantic_decoder(cls: type) -> Decoder:
    from pydantic import ValidationError

    adapter = _type_adapter(cls)

    def decode(text: str) -> Any:
        try:
            return adapter.validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            # This is the only one of Pydantic's own messages that quotes the payload. The text of a validator is the
            # application's.
            quotes = first["type"] == "union_tag_invalid"
            problem = "the tag of the union is none of those that are expected" if quotes else first["msg"]
            raise Undecodable(_path(first["loc"]), problem) from None

    return decode


def _path(location: Iterable[int | str]) -> str:
    """Return the path. A key of a mapping that is no name, such as an address, is a value of the payload."""
    return ROOT + "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" if _NAME.fullmatch(part) else "[...]" for part in location
    )
