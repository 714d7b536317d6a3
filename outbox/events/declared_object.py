"""What `emit` takes in place of an event type's name, for type checkers: objects of classes that can be declared.

No type can say that `@outbox.event` has declared a class, so these protocols say what kinds of classes it can declare.
Objects of a TypedDict are dicts: `emit` takes the class, and the dict as the payload.
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
