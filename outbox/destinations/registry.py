"""The registry: the destinations of this process, and which event types each of them wants.

`@outbox.handler`, `outbox.add_destination` and the settings add destinations to it. It is used when events are
delivered, and not when they are emitted, so a process that only emits needs no destinations. The destinations of other
workers are in the database (`recorded_destinations`).
"""

from __future__ import annotations

import copy
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, Unpack, overload

from outbox.destinations.async_handler import AsyncHandler
from outbox.destinations.backoff import Backoff, check_retry_policy
from outbox.destinations.event_filter import Pattern, check_event_filter, is_wanted
from outbox.destinations.failure import Failure, FailureHook
from outbox.destinations.handler import Function, Handler, declared_type
from outbox.destinations.handler_options import HandlerOptions
from outbox.destinations.limits import Limits
from outbox.destinations.order_policy import OnFailed, check_order_policy
from outbox.destinations.periodic_job import PeriodicJob, PeriodicRouter
from outbox.destinations.protocol import Destination
from outbox.destinations.redaction import Redactions
from outbox.destinations.router import Router
from outbox.errors import RegistrationError
from outbox.events.event import Event
from outbox.storage.models import KEY_LENGTH, RUN
from outbox.text import is_storable

D = TypeVar("D")
R = TypeVar("R")
F = TypeVar("F", bound=Function)
H = TypeVar("H", bound=Callable[[Failure], Any])

# For how many event types the destinations are cached. There is a limit, because an application may create new event
# types without end.
LOOKUPS_KEPT = 1_000


class Registry:
    """The destinations by name, and the event types that are ignored."""

    def __init__(self) -> None:
        # The destinations by name. Whenever they change, this is a new mapping.
        self.destinations: Mapping[str, Destination] = {}
        # The names of the destinations that come from the settings. New settings replace these destinations.
        self._configured: frozenset[str] = frozenset()
        self._ignored: list[Pattern] = []
        self._retired: tuple[str, ...] = ()
        self._lookups: dict[str, tuple[Destination, ...]] = {}
        # The routers of rows that are not events, by kind (`storage/models.py`): they find a row's destination.
        self.routers: dict[str, Router] = {}
        # Which parts of a payload pages and commands display.
        self.redactions = Redactions()
        self._periodic: dict[str, PeriodicJob] = {}
        # Called after failed deliveries. The tuple is replaced, not changed.
        self.failure_hooks: tuple[FailureHook, ...] = ()
        # Returns the destination to register instead of a given one: for tests (`separate`).
        self._substitute: Callable[[Destination], Destination] = lambda destination: destination
        self._lock = threading.Lock()

    def add(self, destination: Destination) -> None:
        """Register a destination of any kind."""
        _check(destination)
        with self._lock:
            if destination.name in self.destinations:
                raise _name_taken(destination.name, by_settings=destination.name in self._configured)
            self._replace({**self.destinations, destination.name: destination})

    def set_configured(self, destinations: Iterable[Destination]) -> None:
        """Register the destinations that the settings name, and remove those that earlier settings named."""
        configured = {destination.name: destination for destination in destinations}
        with self._lock:
            own = {name: each for name, each in self.destinations.items() if name not in self._configured}
            for name in configured.keys() & own.keys():
                raise _name_taken(name, by_settings=True)
            self._configured = frozenset(configured)
            self._replace(own | configured)

    def _replace(self, destinations: Mapping[str, Destination]) -> None:
        # The dict is replaced, not changed, because another thread may be iterating over the old one.
        self.destinations, self._lookups = {name: self._substitute(each) for name, each in destinations.items()}, {}

    @contextmanager
    def separate(self, substitute: Callable[[Destination], Destination]) -> Iterator[None]:
        """Run the block with substitutes for all destinations, and restore the registry at its end; for tests.

        `substitute` returns what is registered instead of a destination. It is also called for those that are added
        inside the block.
        """
        kept = (
            "destinations",
            "_configured",
            "_ignored",
            "_retired",
            "_periodic",
            "routers",
            "failure_hooks",
            "_substitute",
        )
        with self._lock:
            before = {name: copy.copy(getattr(self, name)) for name in kept}
            functions = list(self.redactions.functions)
            self._substitute = substitute
            self._replace(self.destinations)
        try:
            yield
        finally:
            with self._lock:
                for name, value in before.items():
                    setattr(self, name, value)
                self.redactions.functions = functions
                self._lookups = {}

    @overload
    def handler(
        self, event_type: type[D], /, **options: Unpack[HandlerOptions]
    ) -> Callable[[Callable[[Event[D]], R]], Callable[[Event[D]], R]]: ...

    @overload
    def handler(self, *event_types: str, **options: Unpack[HandlerOptions]) -> Callable[[F], F]: ...

    @overload
    def handler(
        self, one: str | type, other: str | type, /, *more: str | type, **options: Unpack[HandlerOptions]
    ) -> Callable[[F], F]: ...

    def handler(
        self,
        *event_types: str | type,
        name: str | None = None,
        replaces: str | Sequence[str] = (),
        concurrency: int | None = None,
        per_second: float | None = None,
        ordered: bool = True,
        on_failed: OnFailed = "block",
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
    ) -> Callable[..., Any]:
        """Register a function for `"user.created"`, `"user.*"`, `"*"` or a class that `outbox.event` has declared.

        The progress of events is stored under `name`, which is the function's path by default. If the function may move
        to another path while events wait for it, pass a name, or pass its earlier name as `replaces`. `concurrency` and
        `per_second` limit its calls (`outbox.Limits`). `ordered` and `on_failed` are for events with an ordering key:
        whether it gets them in order, and whether later events wait behind one that has failed ("block") or not
        ("skip"). `max_attempts` replaces that of the events at this handler, and `backoff` (an `outbox.Backoff`) the
        waits of the settings.
        """
        for each in event_types:
            # Checked here, because `@outbox.handler` without parentheses never calls `register`.
            declared_type(each) if isinstance(each, type) else Pattern(each)

        def register(function: F) -> F:
            kind = AsyncHandler if inspect.iscoroutinefunction(function) else Handler
            handler = kind(
                function,
                event_types,
                name,
                replaces=replaces,
                concurrency=concurrency,
                per_second=per_second,
                ordered=ordered,
                on_failed=on_failed,
                max_attempts=max_attempts,
                backoff=backoff,
            )
            self.add(handler)
            return function

        return register

    def add_periodic(self, job: PeriodicJob) -> None:
        """Register a periodic job."""
        with self._lock:
            if job.name in self._periodic:
                raise RegistrationError(
                    f"Two periodic jobs are called {job.name!r}. Their last scheduled times are kept by name, so each "
                    "needs its own: pass name=…"
                )
            self._periodic = self._periodic | {job.name: job}
            self.routers[RUN] = PeriodicRouter(lambda: self._periodic)

    @overload
    def on_failure(self, function: H) -> H: ...

    @overload
    def on_failure(self, *, each_attempt: bool = False) -> Callable[[H], H]: ...

    def on_failure(self, function: H | None = None, *, each_attempt: bool = False) -> H | Callable[[H], H]:
        """Register a function that is called with an `outbox.Failure` after a delivery has failed for good.

        With `each_attempt=True` it is also called after each attempt that did not succeed. It runs in a thread of its
        own, after the outcome was stored: it can neither change the outcome nor delay deliveries.
        """

        def register(function: H) -> H:
            hook = FailureHook(function, each_attempt)
            with self._lock:
                self.failure_hooks += (hook,)
            return function

        return register if function is None else register(function)

    def ignore(self, *patterns: str) -> None:
        """Declare that no destination needs these event types: their events are marked delivered."""
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
            self._ignored, self._configured, self._retired = [], frozenset(), ()
            self._periodic, self.failure_hooks = {}, ()
            self.redactions.clear()
            self._replace({})

    @property
    def retired(self) -> tuple[str, ...]:
        """Return the names that the application has declared as retired."""
        return self._retired

    @property
    def periodic(self) -> Mapping[str, PeriodicJob]:
        """Return the periodic jobs by name. Whenever they change, this is a new mapping."""
        return self._periodic

    @property
    def is_empty(self) -> bool:
        """Return whether there is no destination and no periodic function, and no event type is ignored."""
        has_function = any(job.function is not None for job in self._periodic.values())
        return not self.destinations and not self._ignored and not has_function

    def ignores(self, event_type: str) -> bool:
        """Return whether the application has declared that no destination needs this event type."""
        return any(pattern.matches(event_type) for pattern in self._ignored)

    def wanting(self, event_type: str) -> tuple[Destination, ...]:
        """Return the destinations that want an event type. The result is cached for each type."""
        lookups = self._lookups
        found = lookups.get(event_type)
        if found is None:
            found = tuple(each for each in self.destinations.values() if is_wanted(event_type, each.events))
            if len(lookups) >= LOOKUPS_KEPT:
                lookups.clear()
            # Not `self._lookups`: `_replace` may have set a new dict meanwhile, for which this result may be wrong.
            lookups[event_type] = found
        return found


def _name_taken(name: str, *, by_settings: bool) -> RegistrationError:
    one = (
        ", one of them by the settings (OUTBOX_WEBHOOK_URL, OUTBOX_STREAM, OUTBOX_RABBITMQ_URL, …)"
        if by_settings
        else ""
    )
    return RegistrationError(
        f"Two destinations are called {name!r}{one}. Their progress is kept by name, so each needs its own: pass name=…"
    )


def _check(destination: object) -> None:
    """Raise RegistrationError for a mistake that would otherwise show only when the first event is delivered."""
    name = getattr(destination, "name", None)
    if isinstance(destination, type) or not isinstance(name, str) or not name.strip():
        raise RegistrationError(
            f"{destination!r} is not a destination: it needs a `name`, `events` and a method `deliver` "
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
    check_order_policy(name, getattr(destination, "ordered", True), getattr(destination, "on_failed", "block"))
    check_retry_policy(name, getattr(destination, "max_attempts", None), getattr(destination, "backoff", None))
    if not isinstance(getattr(destination, "limits", None), Limits | None):
        raise RegistrationError(f"The `limits` of the destination {name!r} are not an outbox.Limits.")


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
    """Return the names in a destination's `replaces`, which may be one name or several."""
    if isinstance(replaces, str):
        return (replaces,)
    if not isinstance(replaces, Iterable):
        raise RegistrationError(f"`replaces` must be a name, or a list of names, not {replaces!r}.")
    return tuple(replaces)
