"""A Python function as a destination."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from outbox.context import context
from outbox.destinations.pattern import Pattern
from outbox.errors import RegistrationError, Reject, RetryLater, Unavailable
from outbox.event import Event
from outbox.outcome import DELIVERED, Failed, Outcome, Retry

logger = logging.getLogger("outbox")

Function = Callable[[Event], Any]


class Handler:
    """Calls one function for one event after another; returning is delivering, raising is not."""

    def __init__(self, function: Function, patterns: Iterable[str], name: str | None = None) -> None:
        if inspect.iscoroutinefunction(function):
            raise RegistrationError(
                f"{_path(function)} is a coroutine function, and handlers are called, not awaited: "
                "write a plain function, and asyncio.run(...) inside it if you must."
            )
        self.name = _path(function) if name is None else name
        self.function = function
        self._patterns = [Pattern(text) for text in patterns]
        if not self._patterns:
            raise RegistrationError(f"The handler {self.name} names no event type: @outbox.handler('user.created').")

    def wants(self, event_type: str) -> bool:
        return any(pattern.matches(event_type) for pattern in self._patterns)

    def deliver(self, events: Iterable[Event]) -> Iterator[tuple[Event, Outcome]]:
        for event in events:
            yield event, self._call(event)

    def _call(self, event: Event) -> Outcome:
        try:
            with context(correlation_id=event.correlation_id, tenant_id=event.tenant_id):
                self.function(event)
        except Reject as signal:
            return Failed(describe(signal))
        except RetryLater as signal:
            return Retry(str(signal), signal.after)
        except Unavailable as signal:
            return signal
        except (Exception, SystemExit) as error:
            logger.debug("handler %s failed on %r", self.name, event, exc_info=True)
            return Retry(describe(error))
        return DELIVERED


def describe(error: BaseException) -> str:
    """`ValueError: what it said`"""
    try:
        text = str(error)
    except Exception:
        text = "(its message could not be read)"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _path(function: Function) -> str:
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', repr(function))}"
