"""Find the id that identifies a message in the inbox, in the arguments of the call that handles the message.

The default is the id of the first argument. `outbox.inbox.once(…, key=…)` names another argument or field, or gives a
function that returns the id and takes all arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final
from uuid import UUID

from outbox.errors import InvalidEvent, InvalidMessage
from outbox.events.validate import check_text
from outbox.storage.models import KEY_LENGTH

Key = str | Callable[..., object]

_MISSING: Final = object()


def id_finder(function: Callable[..., object], key: Key | None) -> Callable[..., object]:
    """Return a function that finds the message's id in the arguments of a call of `function`."""
    if callable(key):
        return key
    if key is None:
        return lambda *args, **kwargs: _id_of(_first_argument(function, args, kwargs))
    signature = inspect.signature(function)
    if key in signature.parameters:
        return lambda *args, **kwargs: _argument(signature.bind(*args, **kwargs), key)
    return lambda *args, **kwargs: _field(_first_argument(function, args, kwargs), key)


def check_id(what: str, value: object) -> str:
    """Return a message's id, or a handler's name, as text; raise InvalidMessage if it is invalid."""
    text: Any = str(value) if isinstance(value, UUID | int) and not isinstance(value, bool) else value
    try:
        return check_text(text, what, KEY_LENGTH)
    except InvalidEvent as error:
        raise InvalidMessage(f"{error} The inbox identifies a message by text, an integer or a UUID.") from None


def _first_argument(function: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """Return the first argument, whether it was passed by position or by name; None if there is none."""
    return args[0] if args else next(iter(inspect.signature(function).bind(**kwargs).arguments.values()), None)


def _argument(call: inspect.BoundArguments, name: str) -> object:
    call.apply_defaults()
    return call.arguments[name]


def _id_of(message: object) -> object:
    """Return the id of an event, an envelope, or a Dramatiq message."""
    for name in ("id", "message_id"):
        id = _field(message, name, None)
        if id is not None:
            return id
    raise InvalidMessage(
        f"{type(message).__name__} has no id: pass outbox.inbox.once(…, key=…), or use outbox.inbox.claim(id, …)."
    )


def _field(message: object, name: str, default: object = _MISSING) -> object:
    """Return an item of a mapping, or an attribute of any other object.

    Raise InvalidMessage if it is missing and there is no default.
    """
    value = message.get(name, default) if isinstance(message, Mapping) else getattr(message, name, default)
    if value is _MISSING:
        raise InvalidMessage(f"{type(message).__name__} has no {name!r}, by which the inbox identifies a message.")
    return value
