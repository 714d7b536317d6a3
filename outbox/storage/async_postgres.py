"""The dialect of `playhouse.pwasyncio.AsyncPostgresqlDatabase`, whose driver is asyncpg: for `emit`, `send`, `cancel`.

Everything else (deliveries, the tables, reports, commands) uses a blocking connection to the same database.

asyncpg lets the server infer the type of each parameter, and encodes the parameter as that type. So an array or a
timestamp that is passed as text needs a cast from text first (`statements.asyncpg`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import peewee

from outbox.storage import statements
from outbox.storage.async_database import check_bridge
from outbox.storage.dialect import Dialect, Row
from outbox.storage.postgres import Postgres
from outbox.table_names import Tables


class AsyncPostgres(Postgres):
    def __init__(self, database: peewee.Database, tables: Tables) -> None:
        super().__init__(database, tables)
        self.statements = statements.asyncpg(tables)

    def check_caller(self, caller: str) -> None:
        check_bridge(caller)

    def _driver_in_transaction(self, connection: Any) -> bool:
        return bool(connection.conn.is_in_transaction())

    @contextmanager
    def connection(self, *, create: bool = False) -> Iterator[None]:
        """Run the block: a task gets its connection with its first statement, and returns it when it ends."""
        yield

    def first_row(self, statement: str, parameters: Sequence[object]) -> Row | None:
        return Dialect.first_row(self, statement, parameters)

    def select(self, query: Any) -> list[Any]:
        return Dialect.select(self, query)
