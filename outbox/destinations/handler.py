"""A Python function as a destination: `@outbox.handler` makes a Handler from it.

The registry holds handlers and other destinations. Delivery calls `deliver`. A consumer of a stream instead calls
`call` for each event, and `outcome_of` after an error.
"""

from __future__ import annotations

import inspect
import logging
from asyncio import CancelledError
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any

from outbox.destinations.backoff import Backoff, check_retry_policy
from outbox.destinations.event_filter import Pattern
from outbox.destinations.handler_result import check_handler_result
from outbox.destinations.limits import Limits
from outbox.destinations.order_policy import OnFailed, check_order_policy
from outbox.destinations.outcome import DELIVERED_OUTCOME, Failed, Outcome, Retry
from outbox.destinations.protocol import Lease
from outbox.errors import RegistrationError, Reject, RetryLater, Unavailable, UnreadableEvent, describe
from outbox.events.context import context
from outbox.events.event import Event
from outbox.events.event_types import EventType, event_types, path_of
from outbox.storage.connection_errors import is_pool_exhausted
from outbox.telemetry import tracing

logger = logging.getLogger(__name__)

# The error and the wait of an event whose handler found no free connection in the pool. The event loses no attempt,
# because the pool is too small and the event is not the cause.
POOL_EXHAUSTED = "the connection pool had no connection left: raise its max_connections (`outbox doctor` says to what)"
POOL_EXHAUSTED_WAIT = timedelta(seconds=10)

Function = Callable[[Event], Any]

# What a handler may raise because of its event. CancelledError is no subclass of Exception, but it belongs here: it
# comes from asyncio code that the handler ran. Other exceptions are not caught: a time limit or a shutdown raises them
# to end the work of the thread.
CALL_ERRORS = (Exception, SystemExit, CancelledError)


class Handler:
    """Calls a function for one event after another: an event is delivered if the function returns without an error."""

    # Whether the function is awaited (`async_handler.py`).
    is_async = False

    def __init__(
        self,
        function: Function,
        event_types: Iterable[str | type],
        name: str | None = None,
        *,
        replaces: str | Sequence[str] = (),
        concurrency: int | None = None,
        per_second: float | None = None,
        ordered: bool = True,
        on_failed: OnFailed = "block",
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        if inspect.iscoroutinefunction(function) != self.is_async:
            raise RegistrationError(
                f"{path_of(function)} is {'a plain' if self.is_async else 'a coroutine'} function: register it with "
                "@outbox.handler, which chooses whether it is called or awaited."
            )
        _check_signature(function)
        self.name = path_of(function) if name is None else name
        self.function = function
        self.limits = Limits(concurrency, per_second)
        self._logged_types: set[type[BaseException]] = set()
        self.replaces = replaces
        check_order_policy(self.name, ordered, on_failed)
        self.ordered, self.on_failed = ordered, on_failed
        check_retry_policy(self.name, max_attempts, backoff)
        self.max_attempts, self.backoff = max_attempts, backoff
        given = tuple(event_types)
        # The classes whose objects it gets as `event.data`, by event type.
        self._classes = {declared_type(each).name: each for each in given if isinstance(each, type)}
        self.events = tuple(Pattern(each if isinstance(each, str) else declared_type(each).name).text for each in given)
        self.check_classes()
        if not self.events:
            raise RegistrationError(f"The handler {self.name} names no event type: @outbox.handler('user.created').")

    def check_classes(self) -> None:
        """Raise RegistrationError unless the events of its classes can be read, as objects of these classes.

        The registration checks that, and a worker again when it starts: other modules may declare later versions.
        """
        for name, cls in self._classes.items():
            latest = event_types.check(name)
            if latest.cls is not cls:
                raise RegistrationError(
                    f"The handler {self.name} takes {path_of(cls)}, and the latest version is {latest}. Handlers get "
                    "the latest version of an event: upcasters make it from older ones."
                )

    def deliver(self, events: Iterable[Event], lease: Lease) -> Iterator[tuple[Event, Outcome]]:
        """Call the function for each event; yield the event's outcome."""
        for event in events:
            yield event, self._call(event, lease)

    def call(self, event: Event) -> None:
        """Call the function in the event's context (correlation id, tenant, span). Errors are not caught."""
        if self._classes:
            self.read(event)
        if event.correlation_id is None and event.tenant_id is None and event.span is None:
            result = self.function(event)  # the usual case: there is no context to enter
        else:
            result = self._call_in_context(event)
        if result is not None:
            check_handler_result(self.name, result)

    def read(self, event: Event) -> None:
        """Read the event's data before the call: an event that can't be read must not be half processed."""
        if event.event_type in self._classes:
            _ = event.data

    def _call_in_context(self, event: Event) -> Any:
        with context(correlation_id=event.correlation_id, tenant_id=event.tenant_id):
            if event.span is None:
                return self.function(event)
            with tracing.inside(event):
                return self.function(event)

    def outcome_of(self, event: Event, error: BaseException) -> Outcome:
        """Return the outcome of an event for which the function raised this error."""
        match error:
            case Reject():
                return Failed(describe(error), exception=error)
            case RetryLater():
                return Retry(str(error), error.after, exception=error)
            case Unavailable():
                return error
            case UnreadableEvent():
                return Retry(describe(error), exception=error)
        if is_pool_exhausted(error):
            return Unavailable(POOL_EXHAUSTED, not_before=POOL_EXHAUSTED_WAIT)
        self._log(event, error)
        return Retry(describe(error), exception=error)

    def _call(self, event: Event, lease: Lease, *, again: bool = False) -> Outcome:
        try:
            self.call(event)
        except CALL_ERRORS as error:
            if not again and is_pool_exhausted(error) and lease.wait_for_connection():
                return self._call(event, lease, again=True)
            return self.outcome_of(event, error)
        return DELIVERED_OUTCOME

    def _log(self, event: Event, error: BaseException) -> None:
        """Log the traceback: as a warning for the first error of each type, otherwise at DEBUG.

        Delivery logs the outcome of the event.
        """
        is_first = type(error) not in self._logged_types
        self._logged_types.add(type(error))
        level = logging.WARNING if is_first else logging.DEBUG
        logger.log(
            level,
            "%s raised an error for %r; further errors of this type are logged at DEBUG",
            self.name,
            event,
            exc_info=error,
        )


def declared_type(cls: type) -> EventType:
    """Return what a class was declared as; raise RegistrationError if it was not."""
    declared = event_types.of_class(cls)
    if declared is None:
        raise RegistrationError(
            f"{path_of(cls)} is not declared: use @outbox.event above the class, before the handler."
        )
    return declared


def _check_signature(function: Function) -> None:
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        raise RegistrationError(
            f"{path_of(function)} can't be called with one argument, and a handler gets the event alone: "
            "def handle(event). A method must be registered on its instance."
        ) from None
    except ValueError:
        return  # some built-in functions have no signature that could be checked
