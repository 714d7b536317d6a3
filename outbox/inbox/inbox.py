"""The inbox: a message has its effect once, however often it comes.

    @outbox.inbox.once("ledger")
    def credit(event):
        Account.update(balance=Account.balance + event.payload["amount"]).where(...).execute()

A row that says "the ledger has dealt with this message" is inserted first, in the same transaction as the handler's
own writes. Of two that try at the same time, one waits for the other's commit and then finds the row: it skips. A
handler that raises, or a process that dies, leaves neither its effect nor the row. There is no look before the leap.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NoReturn, ParamSpec, Protocol, TypeVar
from uuid import UUID

import peewee

from outbox.destinations.handler_result import check_handler_result
from outbox.errors import InvalidEvent, InvalidMessage, RegistrationError, Signal, TransactionRequired
from outbox.storage import retention, schema
from outbox.storage.dialect import Dialect
from outbox.storage.models import KEY_LENGTH
from outbox.telemetry.counters import Counters
from outbox.text import check_text

logger = logging.getLogger("outbox")

P = ParamSpec("P")
R = TypeVar("R")
Key = str | Callable[..., object]


class Decorator(Protocol):
    def __call__(self, function: Callable[P, R], /) -> Callable[P, R | Skipped]: ...


class Skipped:
    """What a call answers that was skipped, because its message has been dealt with. It counts as false."""

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "outbox.inbox.SKIPPED"


SKIPPED: Final = Skipped()

# What tells that a function may answer SKIPPED: an attribute, which functools.wraps hands on.
MARK: Final = "__outbox_handler_name__"


class Inbox:
    """Who has dealt with which message, in the database that holds the handlers' own tables."""

    def __init__(self, dialect: Dialect, counters: Counters, retention_hours: float) -> None:
        self.dialect = dialect
        self.database = dialect.database
        self.counters = counters
        self._retention_hours = retention_hours

    @contextmanager
    def claim(self, message_id: object, handler_name: str) -> Iterator[bool]:
        """A transaction around the block; whether this is the first time that the handler sees the message.

        Inside a transaction of the caller's it is a savepoint, and counts once that commits.
        """
        key = (_text("message_id", message_id), _text("handler_name", handler_name))
        version: str | None = None
        raised: BaseException | None = None
        nested = False
        try:
            with self.dialect.connection():
                nested = self.dialect.in_transaction
                with self.dialect.atomic():
                    version = self._insert(key)
                    if version is None:
                        self.counters.add(skipped=1)
                        logger.debug("skipped: %s has dealt with message %s", handler_name, message_id)
                    try:
                        yield version is not None
                    except BaseException as error:
                        raised = error
                        raise
                    self._check_that_it_commits(handler_name)
        except BaseException as error:
            undone = nested and error is raised  # the savepoint was there to go back to
            if raised is None or version is None or undone:
                raise
            if self._take_back(key, version, nested=nested):
                _raise_half_done(key, raised)
            raise

    def once(self, handler_name: str, *, key: Key | None = None) -> Decorator:
        """Have a function called once for each message, in a transaction; later calls answer SKIPPED.

        The message is the first argument: an event, an envelope, a Dramatiq message, or anything else with an id.
        `key` finds the id elsewhere: the name of an argument or of a field of the first one, or a function of all
        arguments.
        """
        return once_in(lambda: self, handler_name, key)

    def create_tables(self) -> None:
        """Make the inbox's table alone, where there is no outbox; safe from many processes at once."""
        schema.create_inbox(self.dialect)

    def cleanup(self, retention_hours: float | None = None, *, seconds: float | None = None) -> dict[str, int]:
        """Forget messages of longer ago than the retention: {"deleted": …, "remaining": up to a cap}."""
        hours = self._retention_hours if retention_hours is None else retention_hours
        return retention.cleanup_inbox(self.dialect, hours, seconds=seconds)

    def _insert(self, key: tuple[str, str]) -> str | None:
        """Return the version of the row that was inserted, or None if the handler has dealt with the message."""
        with schema.explaining_missing_inbox(self.dialect):
            row = self.database.execute_sql(self.dialect.statements.inbox_insert, key).fetchone()
        return None if row is None else str(row[0])

    def _check_that_it_commits(self, handler_name: str) -> None:
        if not self.dialect.can_commit:
            raise TransactionRequired(
                f"What {handler_name!r} did can't be committed: an SQL statement in it failed and the error was "
                "caught, or its transaction was ended by hand. Let the error out, or put `with db.atomic():` "
                "around what may fail."
            )

    def _take_back(self, key: tuple[str, str], version: str, *, nested: bool) -> bool:
        """Remove the row if it outlived the rollback, and return whether it did.

        It does if the handler has committed by itself before it raised. With the row left there, the message would be
        skipped the next time, and the rest of the handler's effect would be lost. What is open of a caller's
        transaction was begun after that commit and holds only what the handler wrote since.
        """
        try:
            with self.dialect.connection():
                if self.dialect.in_transaction:
                    self.database.rollback()
                parameters = (*key, version)
                taken = self.database.execute_sql(self.dialect.statements.inbox_take_back, parameters).fetchone()
                if nested:
                    self.database.begin()  # its owner is going to end it
        except peewee.PeeweeException as error:
            logger.debug("whether the inbox has a row of %s that is to be removed is unknown: %s", key, error)
            return False
        return taken is not None


def _raise_half_done(key: tuple[str, str], raised: BaseException) -> NoReturn:
    """Raise an error about a handler that committed and then raised, or what it raised if that decides what follows."""
    message_id, handler_name = key
    text = (
        f"{handler_name!r} committed by itself and then raised {type(raised).__name__} for message {message_id}: "
        "what it wrote before that commit can't be undone. Its row was removed from the inbox, so the "
        "message is not skipped when it comes again, and that part of the effect will then be there twice. "
        "Take the commit out of the function: the inbox commits when it returns."
    )
    logger.error("%s", text)
    if isinstance(raised, Signal) or not isinstance(raised, Exception):
        raise raised
    raise TransactionRequired(text) from raised


def once_in(inbox: Callable[[], Inbox], handler_name: str, key: Key | None) -> Decorator:
    """The inbox is looked up at each call: a decorator runs before `configure` does."""
    _text("handler_name", handler_name)

    def decorate(function: Callable[P, R]) -> Callable[P, R | Skipped]:
        _check(function, handler_name)
        find = _finder(function, key)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R | Skipped:
            with inbox().claim(find(*args, **kwargs), handler_name) as first:
                if not first:
                    return SKIPPED
                result = function(*args, **kwargs)
                check_handler_result(handler_name, result)  # before the commit, which would remember it as done
                return result

        setattr(call, MARK, handler_name)
        return call

    return decorate


def _finder(function: Callable[..., object], key: Key | None) -> Callable[..., object]:
    """How to get from the arguments of a call to the message's id."""
    if callable(key):
        return key
    if key is None:
        return lambda *args, **kwargs: id_of(_first(function, args, kwargs))
    signature = inspect.signature(function)
    if key in signature.parameters:
        return lambda *args, **kwargs: _argument(signature.bind(*args, **kwargs), key)
    return lambda *args, **kwargs: _field(_first(function, args, kwargs), key)


def _first(function: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """The first argument, which may have been given by its name."""
    return args[0] if args else next(iter(inspect.signature(function).bind(**kwargs).arguments.values()), None)


def _argument(call: inspect.BoundArguments, name: str) -> object:
    call.apply_defaults()
    return call.arguments[name]


def _check(function: Callable[..., object], handler_name: str) -> None:
    """A function that does its work after it has returned does it after the commit."""
    kinds: dict[str, Callable[[object], bool]] = {
        "a coroutine function": inspect.iscoroutinefunction,
        "a generator": inspect.isgeneratorfunction,
        "an asynchronous generator": inspect.isasyncgenfunction,
    }
    for kind, is_one in kinds.items():
        if is_one(function):
            raise RegistrationError(
                f"What {handler_name!r} decorates is {kind}, and would do its work after the transaction: "
                "write a plain function."
            )


def id_of(message: object) -> object:
    """The id of an event, an envelope, or a Dramatiq message."""
    for name in ("id", "message_id"):
        found = _field(message, name, None)
        if found is not None:
            return found
    raise InvalidMessage(
        f"{type(message).__name__} has no id: pass outbox.inbox.once(…, key=…), or use outbox.inbox.claim(id, …)."
    )


_MISSING: Final = object()


def _field(message: object, name: str, default: object = _MISSING) -> object:
    found = message.get(name, default) if isinstance(message, Mapping) else getattr(message, name, default)
    if found is _MISSING:
        raise InvalidMessage(f"{type(message).__name__} has no {name!r}, and the inbox knows a message by that.")
    return found


def _text(what: str, value: object) -> str:
    text: Any = str(value) if isinstance(value, UUID | int) and not isinstance(value, bool) else value
    try:
        return check_text(text, what, KEY_LENGTH)
    except InvalidEvent as error:
        raise InvalidMessage(f"{error} The inbox knows a message by text, an integer or a UUID.") from None
