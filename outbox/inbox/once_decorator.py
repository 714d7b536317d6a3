"""Make the decorator `outbox.inbox.once`, which calls a function once for each message, in a transaction.

    @outbox.inbox.once("ledger")
    def credit(event):
        Account.update(balance=Account.balance + event.payload["amount"]).where(...).execute()

The decorated function first claims the message in the inbox. If the original function has processed the message before,
it is not called, and SKIPPED is returned.

The module is not called `once`, because a submodule with this name would hide the function `outbox.inbox.once`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final, ParamSpec, Protocol, TypeVar

from outbox.destinations.handler_result import check_handler_result
from outbox.errors import RegistrationError
from outbox.inbox.message_id import Key, check_id, id_finder

P = ParamSpec("P")
R = TypeVar("R")
# The type of `Inbox.claim`, which claims a message, given its id and the handler's name.
Claim = Callable[[object, str], AbstractContextManager[bool]]


class Decorator(Protocol):
    def __call__(self, function: Callable[P, R], /) -> Callable[P, R | Skipped]: ...


class Skipped:
    """The type of `SKIPPED`, which a call returns if its message was processed before. Its truth value is False."""

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "outbox.inbox.SKIPPED"


SKIPPED: Final = Skipped()

# The name of an attribute that decorated functions have; its value is the handler's name. Such a function may return
# SKIPPED. The mark is an attribute, because functools.wraps copies attributes to further wrappers.
HANDLER_NAME_ATTRIBUTE: Final = "__outbox_handler_name__"


def make_once(claim: Claim, handler_name: str, key: Key | None) -> Decorator:
    """Return the decorator. It calls `claim` only in calls of the function, after `outbox.configure` has run."""
    check_id("handler_name", handler_name)

    def decorate(function: Callable[P, R]) -> Callable[P, R | Skipped]:
        _check_function(function, handler_name)
        find_id = id_finder(function, key)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R | Skipped:
            with claim(find_id(*args, **kwargs), handler_name) as first:
                if not first:
                    return SKIPPED
                result = function(*args, **kwargs)
                # Inside the transaction, because its commit records the message as processed.
                check_handler_result(handler_name, result)
                return result

        setattr(call, HANDLER_NAME_ATTRIBUTE, handler_name)
        return call

    return decorate


def _check_function(function: Callable[..., object], handler_name: str) -> None:
    """Raise RegistrationError if the function would do its work after it has returned, which is after the commit."""
    kinds: dict[str, Callable[[object], bool]] = {
        "a coroutine function": inspect.iscoroutinefunction,
        "a generator": inspect.isgeneratorfunction,
        "an asynchronous generator": inspect.isasyncgenfunction,
    }
    for kind, is_of_kind in kinds.items():
        if is_of_kind(function):
            raise RegistrationError(
                f"The function of {handler_name!r} is {kind}, which would do its work after the transaction: "
                "write a plain function."
            )
