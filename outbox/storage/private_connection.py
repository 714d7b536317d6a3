"""Give the library's own work a database connection that the application does not share.

The lease keeper and the process reporter may run in the application's own processes. If they used the application's
pool, they could take its last connection, and a forked child could get a connection that they have returned to the
pool. So they use a `private_connection`.

In a worker, the application's middleware may have opened a transaction on the thread's connection before the outbox's
actor is called. Deliveries must not run inside it: `outside_transaction` sets it aside.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import peewee
from playhouse.pool import PooledDatabase

from outbox.storage.peewee_database import is_missing_file, is_private_to_a_thread


def can_be_private(database: Any) -> bool:
    """Return whether every thread has a connection of its own, and all of them see the same tables."""
    return isinstance(database._state, threading.local) and not is_private_to_a_thread(database)


@contextmanager
def private_connection(database: Any) -> Iterator[None]:
    """Give the calling thread a connection inside the block; close it at the end. The thread must not have one yet."""
    connection = new_connection(database)
    database._state.set_connection(connection)
    try:
        if database.server_version is None:
            database._set_server_version(connection)
        database._initialize_connection(connection)
        yield
    finally:
        database._state.reset()
        connection.close()


@contextmanager
def outside_transaction(database: Any) -> Iterator[None]:
    """Run the block with another connection than the one on which this thread's transaction is open.

    SQLite has one writer at a time. With `lock_type="IMMEDIATE"` the transaction holds the write lock, and the block
    would wait for it until a timeout. So on SQLite the transaction is committed before the block, and another one is
    begun after it.
    """
    connection = database.connection()
    is_split = isinstance(database, peewee.SqliteDatabase) and connection.in_transaction
    if is_split:
        connection.execute("COMMIT")
    try:
        with _without_connection(database):
            yield
    finally:
        if is_split:
            connection.execute("BEGIN")


@contextmanager
def _without_connection(database: Any) -> Iterator[None]:
    """Run the block as if this thread had no connection yet. Afterwards the thread has the one from before again."""
    state = database._state
    before = state.closed, state.conn, state.ctx, state.transactions
    state.reset()
    try:
        yield
    finally:
        if not database.is_closed():
            database.close()
        state.closed, state.conn, state.ctx, state.transactions = before


def new_connection(database: Any) -> Any:
    """Return a new connection of the driver; the caller closes it."""
    _check_file_exists(database)
    connect = super(PooledDatabase, database)._connect if isinstance(database, PooledDatabase) else database._connect
    with peewee.__exception_wrapper__:  # type: ignore[attr-defined]  # translates the driver's errors
        return connect()


def _check_file_exists(database: peewee.Database) -> None:
    """Raise an error if the SQLite file does not exist: connecting would create an empty one."""
    if is_missing_file(database):
        raise peewee.OperationalError(f"{database.database} no longer exists")
