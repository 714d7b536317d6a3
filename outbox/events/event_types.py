"""The event types that the application has declared as classes, their versions, and the upcasters of old payloads.

`@outbox.event("order.placed", version=2)` declares a class, `@outbox.upcaster("order.placed", from_version=1)` a
function that makes a payload of version 2 from one of version 1. The version of an event is in its headers. What is
stored is never rewritten: when `event.data` is read, the upcasters run one after the other on a copy of the payload,
and the result is read as an object of the latest version's class.

Declarations belong to the classes, so all outboxes of a process share them.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from outbox.errors import InvalidEvent, NewerEvent, RegistrationError, UnreadableEvent, describe
from outbox.events.encoding import encode_object
from outbox.events.typed_payload import Decoder, Undecodable, encodable, is_declarable, make_decoder
from outbox.events.validate import check_event_type

# The header with the version. An event without it was emitted without a class, and counts as version 1.
VERSION_HEADER = "event_version"
# What an upcaster returns is encoded like an emitted payload. It may be larger than OUTBOX_MAX_PAYLOAD_BYTES allows.
NO_LIMIT = 2**62

Upcaster = Callable[[dict[str, Any]], Mapping[str, Any]]
C = TypeVar("C", bound=type)
U = TypeVar("U", bound=Callable[[dict[str, Any]], Any])


@dataclass(frozen=True, slots=True)
class EventType:
    """A class that was declared as one version of an event type."""

    name: str
    version: int
    cls: type
    # The oldest version whose events are still read.
    oldest: int

    def __str__(self) -> str:
        return f"{self.name!r} version {self.version} ({path_of(self.cls)})"


class EventTypes:
    """The declared event types and upcasters of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        """Forget all declarations; for tests."""
        self._by_class: dict[type, EventType] = {}
        self._versions: dict[str, dict[int, EventType]] = {}
        self._upcasters: dict[str, dict[int, Upcaster]] = {}
        self._decoders: dict[type, Decoder] = {}

    @contextmanager
    def separate(self) -> Iterator[None]:
        """Restore at the end of the block what is declared now; for tests."""
        with self._lock:
            by_class, decoders = dict(self._by_class), dict(self._decoders)
            versions = {name: dict(each) for name, each in self._versions.items()}
            upcasters = {name: dict(each) for name, each in self._upcasters.items()}
        try:
            yield
        finally:
            with self._lock:
                self._by_class, self._versions = by_class, versions
                self._upcasters, self._decoders = upcasters, decoders

    def event(self, name: str, *, version: int = 1, oldest: int = 1) -> Callable[[C], C]:
        """Declare a dataclass, Pydantic model, attrs class or TypedDict as a version of an event type.

        Objects of the class can be emitted, and `event.data` of such an event is an object of the class. For each
        version from `oldest` on, an `outbox.upcaster` leads to the next version.
        """
        _check_name(name)
        if type(version) is not int or version < 1:
            raise RegistrationError(f"version of {name!r} must be a whole number from 1 on, not {version!r}.")
        if type(oldest) is not int or not 1 <= oldest <= version:
            raise RegistrationError(f"oldest of {name!r} must be a whole number from 1 to {version}, not {oldest!r}.")

        def declare(cls: C) -> C:
            if not is_declarable(cls):
                raise RegistrationError(
                    f"{cls!r} can't be declared as the event {name!r}: it is no dataclass, Pydantic model, attrs class "
                    "or TypedDict. Put @outbox.event above the decorator that makes it one."
                )
            self._add(EventType(name, version, cls, oldest))
            return cls

        return declare

    def upcaster(self, name: str, *, from_version: int) -> Callable[[U], U]:
        """Declare a function that makes a payload of the next version from one of `from_version`.

        It gets the payload as a dict of its own, and returns a dict, which may be the same.
        """
        _check_name(name)
        if type(from_version) is not int or from_version < 1:
            raise RegistrationError(f"from_version of {name!r} must be a whole number from 1 on, not {from_version!r}.")

        def declare(function: U) -> U:
            with self._lock:
                others = self._upcasters.setdefault(name, {})
                other = others.get(from_version)
                if other is not None and not _is_same_function(other, function):
                    raise RegistrationError(
                        f"Two upcasters of {name!r} are declared from version {from_version}: {path_of(other)} and "
                        f"{path_of(function)}. Remove one of them."
                    )
                others[from_version] = function
            return function

        return declare

    def _add(self, new: EventType) -> None:
        with self._lock:
            versions = self._versions.setdefault(new.name, {})
            for other in (versions.get(new.version), self._by_class.get(new.cls)):
                # A module that is executed again declares its classes again.
                if other is not None and (path_of(other.cls) != path_of(new.cls) or other.name != new.name):
                    raise RegistrationError(f"{new} can't be declared: {other} is declared already.")
            replaced = versions.get(new.version)
            if replaced is not None:
                del self._by_class[replaced.cls]
            versions[new.version] = self._by_class[new.cls] = new

    @property
    def declared(self) -> list[EventType]:
        """Return all declared classes, by name and version."""
        return sorted(self._by_class.values(), key=lambda each: (each.name, each.version))

    def of_class(self, cls: type) -> EventType | None:
        """Return what a class was declared as."""
        return self._by_class.get(cls)

    def latest(self, name: str) -> EventType | None:
        """Return the latest version of an event type; None if none is declared."""
        versions = self._versions.get(name)
        return versions[max(versions)] if versions else None

    def upcasters_of(self, name: str) -> Mapping[int, Upcaster]:
        """Return the upcasters of an event type by the version that they take."""
        return self._upcasters.get(name, {})

    def check(self, name: str) -> EventType:
        """Return the latest version of an event type; raise RegistrationError if events of it could not be read.

        Every older version must have an upcaster, and every upcaster must lead to a declared version.
        """
        latest = self.latest(name)
        if latest is None:
            raise RegistrationError(f"No class is declared for {name!r}: use @outbox.event({name!r}).")
        upcasters = self.upcasters_of(name)
        missing = [version for version in range(latest.oldest, latest.version) if version not in upcasters]
        if missing:
            raise RegistrationError(
                f"{latest} has no upcaster from version {_listed(missing)}, so events of that version could not be "
                f"read. Declare @outbox.upcaster({name!r}, from_version={missing[0]}) above the handlers, or pass "
                f"oldest={missing[-1] + 1} to @outbox.event if there are no such events any more."
            )
        beyond = [version for version in upcasters if version >= latest.version]
        if beyond:
            raise RegistrationError(
                f"{path_of(upcasters[beyond[0]])} is declared as an upcaster of {name!r} from version {beyond[0]}, but "
                f"the latest version is {latest}. Declare the class of version {beyond[0] + 1}."
            )
        self._decoder(latest)
        return latest

    def read(self, name: str, payload: str, headers: Mapping[str, Any]) -> Any:
        """Return the payload as an object of the latest version's class.

        Raise UnreadableEvent if that is not possible, and NewerEvent if a later version of the code is needed.
        """
        latest = self.latest(name)
        if latest is None:
            raise UnreadableEvent(f"no class is declared for {name!r} (@outbox.event): use event.payload")
        version = headers.get(VERSION_HEADER, 1)
        if type(version) is not int or version < 1:
            raise UnreadableEvent(f"the header {VERSION_HEADER} of {name!r} is no whole number from 1 on")
        if version > latest.version:
            raise NewerEvent(name, version, latest.version)
        if version < latest.version:
            payload = self._upcast(latest, payload, version)
        try:
            return self._decoder(latest)(payload)
        except Undecodable as error:
            origin = "" if version == latest.version else f", upcast from version {version}"
            raise UnreadableEvent(f"can't be read as {latest}{origin}: {error.path}: {error}", error.path) from None
        except RegistrationError:
            raise
        except Exception as error:  # a class may run any code of the application, such as __post_init__
            raise UnreadableEvent(f"can't be read as {latest}: {describe(error)}") from error

    def _upcast(self, latest: EventType, payload: str, version: int) -> str:
        if version < latest.oldest:
            raise UnreadableEvent(f"{latest.name!r} version {version} is no longer read: the oldest is {latest.oldest}")
        upcasters, upcast = self.upcasters_of(latest.name), json.loads(payload)
        for step in range(version, latest.version):
            function = upcasters.get(step)
            if function is None:
                raise UnreadableEvent(f"{latest.name!r} has no upcaster from version {step}")
            try:
                text = _step(function, upcast)
            except Exception as error:
                raise UnreadableEvent(
                    f"the upcaster {path_of(function)} of {latest.name!r} from version {step} raised {describe(error)}"
                ) from error
            upcast = json.loads(text)
        return text

    def _decoder(self, latest: EventType) -> Decoder:
        decoder = self._decoders.get(latest.cls)
        if decoder is None:
            try:
                decoder = self._decoders[latest.cls] = make_decoder(latest.cls)
            except RegistrationError:
                raise
            except Exception as error:  # the type hints of an application may contain anything
                raise RegistrationError(f"{latest} has fields that can't be read: {describe(error)}") from error
        return decoder

    def typed(self, given: object, payload: object, headers: Any) -> tuple[str, object, Any]:
        """Return the event type, the payload and the headers for `emit`, when it is given an object or a class.

        `given` is the object, or its declared class; with the class, `payload` is the object, or a dict.
        """
        is_class = isinstance(given, type)
        cls = given if isinstance(given, type) else type(given)
        declared = self._by_class.get(cls)
        if declared is None:
            raise _not_declared(cls, is_class=is_class)
        if is_class == (payload is None):
            raise InvalidEvent(
                f"payload must be an object of {cls.__name__}, or a dict."
                if is_class
                else f"payload must be left out: the object of {cls.__name__} is the payload."
            )
        value = payload if is_class else given
        if isinstance(headers, Mapping | None):
            headers = {**(headers or {}), VERSION_HEADER: declared.version}
        return declared.name, encodable(cls, value), headers


def path_of(thing: object) -> str:
    """Return where a class or function is defined: `shop.events.OrderPlaced`."""
    return f"{getattr(thing, '__module__', '?')}.{getattr(thing, '__qualname__', repr(thing))}"


def _step(upcaster: Upcaster, payload: dict[str, Any]) -> str:
    """Call one upcaster; return the text of what it returned, encoded as an emitted payload is."""
    returned: object = upcaster(payload)
    if not isinstance(returned, Mapping):
        raise TypeError(f"it returned {type(returned).__name__}, not a dict")
    return encode_object(returned, "what it returned", NO_LIMIT)


def _listed(versions: list[int]) -> str:
    return ", ".join(map(str, versions))


def _is_same_function(one: object, other: object) -> bool:
    """Return whether a module that is executed again has declared the same function again."""

    def place(function: object) -> tuple[str, object]:
        return path_of(function), getattr(getattr(function, "__code__", None), "co_firstlineno", None)

    return one is other or place(one) == place(other)


def _check_name(name: object) -> None:
    try:
        check_event_type(name, "the name of an event type")
    except InvalidEvent as error:
        raise RegistrationError(
            f"@outbox.event and @outbox.upcaster take a name such as 'order.placed': {error}"
        ) from None


def _not_declared(cls: type, *, is_class: bool) -> InvalidEvent:
    if not is_declarable(cls):
        return InvalidEvent(f"event_type must be text, not {'type' if is_class else cls.__name__}.")
    return InvalidEvent(
        f"event_type must be text, or an object of a class that is declared with @outbox.event: {path_of(cls)} is not "
        "declared."
    )


# The declarations of this process.
event_types = EventTypes()
