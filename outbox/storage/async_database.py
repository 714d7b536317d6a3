"""Peewee's asynchronous databases (`playhouse.pwasyncio`): recognise them, and run blocking code on them.

pwasyncio runs blocking code in a greenlet. When that code runs a statement, the greenlet hands the driver's coroutine
to the task that has called `await db.run(…)`, and gets the result once the task has awaited it. So `emit` is the same
code on blocking and on asynchronous databases. Connections and transactions belong to the task, not to the thread.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import peewee

from outbox.errors import AsyncRequired, SettingsError
from outbox.storage.peewee_database import place_of

P = ParamSpec("P")
R = TypeVar("R")


def is_async(database: peewee.Database) -> bool:
    """Return whether this is one of Peewee's asynchronous databases. If so, their module was imported before."""
    module = sys.modules.get("playhouse.pwasyncio")
    return module is not None and isinstance(database, module.AsyncDatabaseMixin)


def is_event_loop_running() -> bool:
    """Return whether the calling code runs on an event loop of asyncio, which a blocking call would stop."""
    asyncio = sys.modules.get("asyncio")  # only a process that has imported it runs a loop
    return asyncio is not None and asyncio._get_running_loop() is not None


def check_bridge(caller: str) -> None:
    """Raise AsyncRequired unless the calling code may run statements on an asynchronous database: `await db.run(…)`."""
    greenlet = sys.modules["greenlet"]  # pwasyncio has imported it
    if greenlet.getcurrent().parent is None or not is_event_loop_running():
        raise AsyncRequired(caller)


class HasApplicationDatabase(Protocol):
    """An Outbox."""

    @property
    def application_database(self) -> peewee.Database: ...


B = TypeVar("B", bound=HasApplicationDatabase)


def awaitable(method: Callable[Concatenate[B, P], R], name: str) -> Callable[Concatenate[B, P], Coroutine[Any, Any, R]]:
    """Return a coroutine method that runs this method on the outbox's asynchronous database, and returns its result."""

    @functools.wraps(method)
    async def call(self: B, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await run_on(self.application_database, name, method, self, *args, **kwargs)

    call.__name__, call.__qualname__ = name, f"Outbox.{name}"
    call.__doc__ = f"Do what `{method.__name__}` does, on an asynchronous database (`playhouse.pwasyncio`)."
    return call


async def run_on(database: Any, name: str, function: Callable[..., R], *args: Any, **kwargs: Any) -> R:
    """Run blocking code on an asynchronous database; `name` is the function that the application has called."""
    if not is_async(database):
        blocking = name.removeprefix("a")
        raise SettingsError(
            f"{name} needs one of Peewee's asynchronous databases (playhouse.pwasyncio), and the outbox's, "
            f"{place_of(database)}, is a blocking {type(database).__name__}. Call {blocking} instead, in the thread in "
            "which the transaction is open; or give outbox.configure the asynchronous database that your coroutines "
            "use."
        )
    result: R = await database.run(function, *args, **kwargs)
    return result
