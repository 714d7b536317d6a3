"""The dialect of `playhouse.pwasyncio.AsyncSqliteDatabase`, whose driver is aiosqlite: for `emit`, `send`, `cancel`.

Everything else (deliveries, the tables, reports, commands) uses blocking connections to the same file.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from outbox.storage.async_database import check_bridge
from outbox.storage.sqlite import Sqlite


class AsyncSqlite(Sqlite):
    def check_caller(self, caller: str) -> None:
        check_bridge(caller)

    def _driver_in_transaction(self, connection: Any) -> bool:
        return bool(connection.conn.in_transaction)

    @contextmanager
    def connection(self, *, create: bool = False) -> Iterator[None]:
        """Run the block: a task gets its connection with its first statement, and returns it when it ends."""
        yield
