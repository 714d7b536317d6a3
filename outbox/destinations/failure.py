"""`Failure`, the argument of the hooks of `outbox.on_failure`, and the check of a hook when it is registered."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from outbox.errors import RegistrationError
from outbox.events.event import Event


@dataclass(frozen=True, slots=True)
class Failure:
    """A delivery that has failed: one event at one destination."""

    event: Event
    # The destination's name.
    destination: str
    # The error as it is stored with the event.
    error: str
    # The exception behind it, with its traceback; None if there was none, such as after an HTTP response.
    exception: BaseException | None
    # How many attempts have counted at this destination.
    attempts: int
    # Whether the event is not tried again at this destination.
    is_final: bool


@dataclass(frozen=True, slots=True)
class FailureHook:
    """A function that `outbox.on_failure` has registered."""

    function: Callable[[Failure], Any]
    each_attempt: bool = False

    def __post_init__(self) -> None:
        name = getattr(self.function, "__qualname__", repr(self.function))
        if not callable(self.function):
            raise RegistrationError(f"@outbox.on_failure takes a function, not {self.function!r}.")
        if inspect.iscoroutinefunction(self.function):
            raise RegistrationError(f"{name} is a coroutine function, and a hook is called, not awaited.")
        try:
            inspect.signature(self.function).bind(None)
        except TypeError:
            raise RegistrationError(
                f"{name} can't be called with one argument, and a hook gets an outbox.Failure: def report(failure)."
            ) from None
        except ValueError:
            return  # some built-in functions have no signature that could be checked
