"""An asynchronous Peewee database (playhouse.pwasyncio) for the tables of a test's blocking one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import unquote, urlsplit

from playhouse.pwasyncio import AsyncPostgresqlDatabase, AsyncSqliteDatabase

from tests.support.servers import PATIENCE_SECONDS


def open_async(url: str, **options: Any) -> Any:
    """Return the asynchronous database at this URL of Peewee's."""
    if urlsplit(url).scheme == "postgresql":
        return AsyncPostgresqlDatabase(url, **{"pool_size": 4} | options)
    return AsyncSqliteDatabase(
        unquote(urlsplit(url).path), **{"pool_size": 4, "pragmas": {"journal_mode": "wal"}, **options}
    )


def run_async(database: Any, main: Callable[[], Awaitable[None]]) -> None:
    """Run a coroutine on an event loop of its own; close the database's connections at the end."""

    async def run() -> None:
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):  # a task that failed would keep one that waits for it waiting
                await main()
        finally:
            await database.close_pool()

    asyncio.run(run())
