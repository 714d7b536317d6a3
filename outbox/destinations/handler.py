"""A Python function as a destination."""

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

logger = logging.getLogger("outbox")

# A pool that is too small is no fault of the event's, and costs it no attempt.
POOL_EXHAUSTED = "the connection pool had no connection left: raise its max_connections (`outbox doctor` says to what)"
POOL_EXHAUSTED_WAIT = timedelta(seconds=10)

__all__ = ["CALL_ERRORS", "Function", "Handler"]

Function = Callable[[Event], Any]

# What a call may raise that is about its own event. CancelledError is no Exception, but it is not meant for the thread:
# it leaks out of a call that ran asyncio code. Others end the work of the thread: a time limit, a shutdown.
CALL_ERRORS = (Exception, SystemExit, CancelledError)


class Handler:
    """Calls one function for one event after another; returning is delivering, raising is not."""

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
                "write a plain function, and asyncio.run(...) inside it if you must."
            )
        _check_signature(function)
        self.name = _path(function) if name is None else name
        self.function = function
        self.limits = Limits(concurrency, per_second)
        self._seen: set[type[BaseException]] = set()
        self.replaces = replaces
        self.events = tuple(Pattern(text).text for text in patterns)
        if not self.events:
            raise RegistrationError(f"The handler {self.name} names no event type: @outbox.handler('user.created').")

    def deliver(self, events: Iterable[Event], lease: Lease) -> Iterator[tuple[Event, Outcome]]:
        for event in events:
            yield event, self._call(event, lease)

    def call(self, event: Event) -> None:
        """Call the function, in the event's context; what it raises goes through."""
        if event.correlation_id is None and event.tenant_id is None and event.span is None:
            result = self.function(event)  # the usual: there is no context to enter
        else:
            result = self._call_in_context(event)
        if result is not None:
            check_handler_result(self.name, result)

    def _call_in_context(self, event: Event) -> Any:
        with context(correlation_id=event.correlation_id, tenant_id=event.tenant_id):
            if event.span is None:
                return self.function(event)
            with tracing.inside(event.span):
                return self.function(event)

    def outcome_of(self, event: Event, error: BaseException) -> Outcome:
        """What it means that a call has raised."""
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
        """Where it came from, once for each kind of error; what became of each event is logged when it is settled."""
        first = type(error) not in self._seen
        self._seen.add(type(error))
        level = logging.WARNING if first else logging.DEBUG
        logger.log(level, "%s raised an error on %r; further ones like it at DEBUG", self.name, event, exc_info=error)


def _check_signature(function: Function) -> None:
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        raise RegistrationError(
            f"{_path(function)} can't be called with one argument, and a handler gets the event alone: "
            "def handle(event). A method must be registered on its instance."
        ) from None
    except ValueError:
        return  # some built-in functions have no signature to look at


def _path(function: Function) -> str:
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', repr(function))}"
