"""Trace every statement that this process runs, through Peewee, a driver's own cursor, or this library.

This is for the process of one call (`call_process.py`). The process ends with the call, so nothing is restored. Here
connections to any database that is not a copy are refused, too.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Collection
from typing import Any, Protocol
from urllib.parse import urlsplit

from outbox.testing.proof.errors import OutsideCall

# Statements that set up a new connection: they are not the handler's own.
SETUP = ("PRAGMA",)
IDLE = 0  # psycopg's TransactionStatus.IDLE


class Watch(Protocol):
    """Is notified of each statement."""

    def begins(self) -> None:
        """A statement is about to run: the one before has ended."""

    def ran(self, statement: str, *, in_transaction: bool) -> None:
        """A statement has run; `in_transaction` says whether a transaction is open now."""


# Raises OutsideCall unless the database with this name is a copy.
Check = Callable[[str], None]


def trace_drivers(watch: Watch, copies: Collection[str], refused: Callable[[str], Exception]) -> None:
    """Trace what this process runs on the copies with these names; refuse connections to other databases.

    `refused` records what was refused, and returns the exception to raise.
    """

    def check(name: str) -> None:
        if name not in copies:
            raise refused(f"the database {name}, which is no copy")

    for module in {id(each): each for each in (sqlite3, sqlite3.dbapi2, _peewees_sqlite()) if each}.values():
        _trace_sqlite(module, watch, check)
    if "psycopg" in sys.modules:
        _trace_psycopg(sys.modules["psycopg"], watch, check)
    if "playhouse.pwasyncio" in sys.modules and "asyncpg" in sys.modules:
        _trace_asyncpg(sys.modules["asyncpg"], sys.modules["playhouse.pwasyncio"], watch, check)
    if "psycopg2" in sys.modules:

        def refuse(*args: object, **kwargs: object) -> object:
            raise refused("a database with psycopg2")

        sys.modules["psycopg2"].connect = refuse  # type: ignore[attr-defined]  # a module


def _peewees_sqlite() -> Any:
    return getattr(sys.modules["peewee"], "sqlite3", None)


# SQLite


def _trace_sqlite(module: Any, watch: Watch, check: Check) -> None:
    connect = module.connect

    def traced_connect(database: Any, *args: Any, factory: Any = module.Connection, **kwargs: Any) -> Any:
        name = database if isinstance(database, str) else str(database)
        if name not in ("", ":memory:"):
            check(name)
        connection = connect(database, *args, factory=_traced_connection(factory, module.Cursor, watch), **kwargs)
        connection.set_authorizer(_refuse_attach)
        connection.execute("PRAGMA synchronous = off")  # a copy need not survive a power failure, only kills
        return connection

    module.connect = traced_connect


def _refuse_attach(action: int, name: str | None, *_: object) -> int:
    """Refuse to attach another file: it would be no copy."""
    is_refused = action == sqlite3.SQLITE_ATTACH and name not in ("", ":memory:")
    return sqlite3.SQLITE_DENY if is_refused else sqlite3.SQLITE_OK


def _traced_connection(base: Any, plain_cursor: Any, watch: Watch) -> Any:
    class TracedConnection(base):  # type: ignore[misc]  # made at run time
        def cursor(self, factory: Any = plain_cursor) -> Any:
            return super().cursor(_traced_cursor(factory, watch))

        def execute(self, *args: Any) -> Any:
            return self.cursor().execute(*args)

        def executemany(self, *args: Any) -> Any:
            return self.cursor().executemany(*args)

        def executescript(self, *args: Any) -> Any:
            return self.cursor().executescript(*args)

        def commit(self) -> None:
            self._end(super().commit, "COMMIT")

        def rollback(self) -> None:
            self._end(super().rollback, "ROLLBACK")

        def __exit__(self, *raised: object) -> Any:
            self._end(lambda: super(TracedConnection, self).__exit__(*raised), "ROLLBACK" if raised[0] else "COMMIT")

        def _end(self, end: Callable[[], object], statement: str) -> None:
            was_open = self.in_transaction
            watch.begins()
            end()
            if was_open:
                watch.ran(statement, in_transaction=False)

    return TracedConnection


def _traced_cursor(base: Any, watch: Watch) -> Any:
    class TracedCursor(base):  # type: ignore[misc]  # made at run time
        def execute(self, sql: str, *args: Any) -> Any:
            return self._run(super().execute, sql, *args)

        def executemany(self, sql: str, *args: Any) -> Any:
            return self._run(super().executemany, sql, *args)

        def executescript(self, sql: str) -> Any:
            return self._run(super().executescript, sql)

        def _run(self, run: Callable[..., Any], sql: str, *args: Any) -> Any:
            if sql.lstrip().upper().startswith(SETUP):
                return run(sql, *args)
            watch.begins()
            result = run(sql, *args)
            watch.ran(sql, in_transaction=self.connection.in_transaction)
            return result

    return TracedCursor


# PostgreSQL


def _trace_psycopg(psycopg: Any, watch: Watch, check: Check) -> None:
    connect = psycopg.Connection.connect.__func__

    def traced_connect(cls: Any, *args: Any, **kwargs: Any) -> Any:
        connection = connect(cls, *args, **kwargs)
        try:
            check(connection.info.dbname)
        except OutsideCall:
            connection.close()
            raise
        _trace_connection(connection, watch)
        return connection

    def refuse(*args: object, **kwargs: object) -> object:
        check("of psycopg's AsyncConnection")
        return None

    psycopg.Connection.connect = classmethod(traced_connect)
    psycopg.connect = psycopg.Connection.connect
    psycopg.AsyncConnection.connect = refuse


def _trace_connection(connection: Any, watch: Watch) -> None:
    def note(query: Any) -> None:
        status = connection.info.transaction_status
        watch.ran(_text_of(query, connection), in_transaction=int(status) != IDLE)

    class TracedCursor(connection.cursor_factory):  # type: ignore[misc]  # made at run time
        def execute(self, query: Any, *args: Any, **kwargs: Any) -> Any:
            watch.begins()
            result = super().execute(query, *args, **kwargs)
            note(query)
            return result

        def executemany(self, query: Any, *args: Any, **kwargs: Any) -> None:
            watch.begins()
            super().executemany(query, *args, **kwargs)
            note(query)

    connection.cursor_factory = TracedCursor
    exec_command = connection._exec_command

    def traced_command(command: Any, *args: Any, **kwargs: Any) -> Any:
        """Begin, commit, roll back, or set a savepoint, as psycopg does it by itself."""
        watch.begins()
        result = yield from exec_command(command, *args, **kwargs)
        if command:
            note(command)
        return result

    connection._exec_command = traced_command


def _trace_asyncpg(asyncpg: Any, pwasyncio: Any, watch: Watch, check: Check) -> None:
    execute = pwasyncio.AsyncPostgresqlConnection.execute

    async def traced_execute(self: Any, sql: str, params: Any = None) -> Any:
        watch.begins()
        result = await execute(self, sql, params)
        watch.ran(sql, in_transaction=bool(self.conn.is_in_transaction()))
        return result

    def guarded(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            dsn = kwargs.get("dsn") or (args[0] if args else None)
            check(str(kwargs.get("database") or (urlsplit(dsn).path[1:] if isinstance(dsn, str) else None)))
            return original(*args, **kwargs)

        return call

    def traced_end(statement: str) -> None:
        original = getattr(asyncpg.transaction.Transaction, statement)

        async def call(self: Any, *args: Any) -> Any:
            watch.begins()
            result = await original(self, *args)
            watch.ran(statement.upper(), in_transaction=bool(self._connection.is_in_transaction()))
            return result

        setattr(asyncpg.transaction.Transaction, statement, call)

    traced_end("commit")
    traced_end("rollback")
    pwasyncio.AsyncPostgresqlConnection.execute = traced_execute
    asyncpg.create_pool = guarded(asyncpg.create_pool)
    asyncpg.connect = guarded(asyncpg.connect)


def _text_of(query: Any, connection: Any) -> str:
    if isinstance(query, bytes):
        return query.decode(errors="replace")
    return query if isinstance(query, str) else str(query.as_string(connection))
