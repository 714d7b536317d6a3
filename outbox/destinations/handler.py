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

from outbox.destinations.event_filter import Pattern
from outbox.destinations.handler_result import check_handler_result
from outbox.destinations.limits import Limits
from outbox.destinations.outcome import DELIVERED_OUTCOME, Failed, Outcome, Retry
from outbox.destinations.protocol import Lease
from outbox.errors import RegistrationError, Reject, RetryLater, Unavailable, describe
from outbox.events.context import context
from outbox.events.event import Event
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

    def __init__(
        self,
        function: Function,
        patterns: Iterable[str],
        name: str | None = None,
        *,
        replaces: str | Sequence[str] = (),
        concurrency: int | None = None,
        per_second: float | None = None,
    ) -> None:
        if inspect.iscoroutinefunction(function):
            raise RegistrationError(
                f"{_path(function)} is a coroutine function, and handlers are called, not awaited: "
                "write a plain function; run a coroutine inside it with asyncio.run(...)."
            )
        _check_signature(function)
        self.name = _path(function) if name is None else name
        self.function = function
        self.limits = Limits(concurrency, per_second)
        self._logged_types: set[type[BaseException]] = set()
        self.replaces = replaces
        self.events = tuple(Pattern(text).text for text in patterns)
        if not self.events:
            raise RegistrationError(f"The handler {self.name} names no event type: @outbox.handler('user.created').")

    def deliver(self, events: Iterable[Event], lease: Lease) -> Iterator[tuple[Event, Outcome]]:
        """Call the function for each event; yield the event's outcome."""
        for event in events:
            yield event, self._call(event, lease)

    def call(self, event: Event) -> None:
        """Call the function in the event's context (correlation id, tenant, span). Errors are not caught."""
        if event.correlation_id is None and event.tenant_id is None and event.span is None:
            result = self.function(event)  # the usual case: there is no context to enter
        else:
            result = self._call_in_context(event)
        if result is not None:
            check_handler_result(self.name, result)

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
                return Failed(describe(error))
            case RetryLater():
                return Retry(str(error), error.after)
            case Unavailable():
                return error
        if is_pool_exhausted(error):
            return Unavailable(POOL_EXHAUSTED, not_before=POOL_EXHAUSTED_WAIT)
        self._log(event, error)
        return Retry(describe(error))

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


def _check_signature(function: Function) -> None:
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        raise RegistrationError(
            f"{_path(function)} can't be called with one argument, and a handler gets the event alone: "
            "def handle(event). A method must be registered on its instance."
        ) from None
    except ValueError:
        return  # some built-in functions have no signature that could be checked


def _path(function: Function) -> str:
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', repr(function))}"
