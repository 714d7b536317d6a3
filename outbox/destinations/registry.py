"""Who wants which events in this process.

Looked up when an event is delivered, not when it is emitted: the emitting process need not know who listens, and
every worker on a table loads the same modules.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from outbox.destinations.event_filter import Pattern, check_event_filter
from outbox.destinations.handler import Function, Handler
from outbox.destinations.limits import Limits
from outbox.destinations.protocol import Destination
from outbox.errors import RegistrationError
from outbox.storage.models import KEY_LENGTH
from outbox.text import is_storable

F = TypeVar("F", bound=Function)

# Event types whose destinations are remembered. An application may make up types without end.
LOOKUPS_KEPT = 1_000


class Registry:
    """Destinations by name, and the event types that want no one."""

    def __init__(self) -> None:
        self._destinations: dict[str, Destination] = {}
        # The names of those that came with the settings, and go with them.
        self._declared: frozenset[str] = frozenset()
        self._ignored: list[Pattern] = []
        self._retired: tuple[str, ...] = ()
        self._lookups: dict[str, tuple[Destination, ...]] = {}
        self._lock = threading.Lock()

    def add(self, destination: Destination) -> None:
        """Register a destination of any kind."""
        _check(destination)
        with self._lock:
            if destination.name in self._destinations:
                raise _taken(destination.name, by_settings=destination.name in self._declared)
            self._replace(self._destinations | {destination.name: destination})

    def declare(self, destinations: Iterable[Destination]) -> None:
        """Register those that the settings name, in place of those that earlier settings named."""
        declared = {destination.name: destination for destination in destinations}
        with self._lock:
            own = {name: each for name, each in self._destinations.items() if name not in self._declared}
            for name in declared.keys() & own.keys():
                raise _taken(name, by_settings=True)
            self._declared = frozenset(declared)
            self._replace(own | declared)

    def _replace(self, destinations: dict[str, Destination]) -> None:
        # Another dict, not a changed one: somebody may be going through it.
        self._destinations, self._lookups = destinations, {}

    def handler(
        self,
        *event_types: str,
        name: str | None = None,
        replaces: str | Sequence[str] = (),
        concurrency: int | None = None,
        per_second: float | None = None,
    ) -> Callable[[F], F]:
        """Register a function for `"user.created"`, `"user.*"` or `"*"`.

        `name` identifies it in the events' progress; it defaults to the function's path, so pass one if the function
        may move while events are waiting for it, or say with `replaces` which name it had before. `concurrency` and
        `per_second` limit its calls (`outbox.Limits`).
        """
        for text in event_types:
            Pattern(text)  # refused here: `@outbox.handler` without its brackets never comes to `register`

        def register(function: F) -> F:
            own = Handler(
                function, event_types, name, replaces=replaces, concurrency=concurrency, per_second=per_second
            )
            self.add(own)
            return function

        return register

    def ignore(self, *patterns: str) -> None:
        """Declare that these event types want no one: they are marked delivered."""
        with self._lock:
            self._ignored += [Pattern(text) for text in patterns]

    def retire(self, *names: str) -> None:
        """Declare that the deployment no longer has destinations of these names.

        The next worker that starts retires them: events stop waiting for them.
        """
        for name in names:
            _check_name(name)
        with self._lock:
            self._retired += names

    def clear(self) -> None:
        """Forget everything; for tests."""
        with self._lock:
            self._ignored, self._declared, self._retired = [], frozenset(), ()
            self._replace({})

    @property
    def destinations(self) -> Mapping[str, Destination]:
        return self._destinations

    @property
    def retired(self) -> tuple[str, ...]:
        return self._retired

    @property
    def is_empty(self) -> bool:
        return not self._destinations and not self._ignored

    def ignores(self, event_type: str) -> bool:
        return any(pattern.matches(event_type) for pattern in self._ignored)

    def wanting(self, event_type: str) -> tuple[Destination, ...]:
        """The destinations for a type, looked up once per type."""
        lookups = self._lookups
        found = lookups.get(event_type)
        if found is None:
            found = tuple(each for each in self._destinations.values() if _wants(each, event_type))
            if len(lookups) >= LOOKUPS_KEPT:
                lookups.clear()
            lookups[event_type] = found  # into the same dict that was read: `_replace` makes another
        return found


def _wants(destination: Destination, event_type: str) -> bool:
    return any(Pattern(text).matches(event_type) for text in destination.events)


def _taken(name: str, *, by_settings: bool) -> RegistrationError:
    one = ", one of them by the settings (OUTBOX_WEBHOOK_URL, OUTBOX_STREAM)" if by_settings else ""
    return RegistrationError(
        f"Two destinations are called {name!r}{one}. Their progress is kept by name, so each needs its own: pass name=…"
    )


def _check(destination: object) -> None:
    """What would otherwise be noticed when the first event is delivered."""
    name = getattr(destination, "name", None)
    if isinstance(destination, type) or not isinstance(name, str) or not name.strip():
        raise RegistrationError(
            f"{destination!r} is no destination: it needs a `name`, `events` and a method `deliver` "
            "(outbox.Destination). A function is registered with @outbox.handler."
        )
    _check_name(name)
    if not callable(getattr(destination, "deliver", None)):
        raise RegistrationError(f"The destination {name!r} has no method `deliver` (outbox.Destination).")
    if not hasattr(destination, "events"):
        raise RegistrationError(
            f"The destination {name!r} has no `events`: the patterns of the event types that it wants, such as "
            "['order.*'], or ['*'] for all. Workers record them in the database, which a method `wants` does not allow."
        )
    check_event_filter(destination.events)
    _check_replaces(name, getattr(destination, "replaces", ()))
    if not isinstance(getattr(destination, "limits", None), Limits | None):
        raise RegistrationError(f"The `limits` of the destination {name!r} are no outbox.Limits.")


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name.strip() or len(name) > KEY_LENGTH or not is_storable(name):
        raise RegistrationError(
            f"The name of a destination must be text of 1 to {KEY_LENGTH} characters, without NUL and lone surrogates, "
            f"not {name!r}."
        )


def _check_replaces(name: str, replaces: object) -> None:
    for old in names_replaced(replaces):
        _check_name(old)
        if old == name:
            raise RegistrationError(f"The destination {name!r} can't replace itself.")


def names_replaced(replaces: object) -> tuple[str, ...]:
    """Return what a destination's `replaces` says, as names: it may be one name, or several."""
    if isinstance(replaces, str):
        return (replaces,)
    if not isinstance(replaces, Iterable):
        raise RegistrationError(f"`replaces` must be a name, or a list of names, not {replaces!r}.")
    return tuple(replaces)
