"""The types of the objects that `emit` accepts instead of an event type's name, for type checkers.

A type can't say that `@outbox.event` has declared a class. So these protocols describe the kinds of classes that it can
declare. (Objects of a TypedDict are dicts: `emit` gets the class, and the dict as the payload.)
"""

from __future__ import annotations

from typing import Any, ClassVar, Protocol


class DataclassObject(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


class AttrsObject(Protocol):
    __attrs_attrs__: ClassVar[Any]


class PydanticObject(Protocol):
    __pydantic_fields__: ClassVar[dict[str, Any]]


DeclaredObject = DataclassObject | AttrsObject | PydanticObject
