"""A connection that nobody else has, for a thread of ours in a process that may be the application's.

From the application's pool it could take the last one, and what it put back there a forked child would find.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import peewee
from playhouse.pool import PooledDatabase

from outbox.storage.peewee_database import is_missing_file, is_private_to_a_thread


def can_have_one(database: Any) -> bool:
    """Whether another thread sees the same tables, and through a connection of its own."""
    return isinstance(database._state, threading.local) and not is_private_to_a_thread(database)


@contextmanager
def private_connection(database: Any) -> Iterator[None]:
    """The calling thread, which has none, gets one inside the block; at the end it is closed for good."""
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


def new_connection(database: Any) -> Any:
    """Return a new connection of the driver's; the caller closes it."""
    _refuse_to_make_a_file(database)
    connect = super(PooledDatabase, database)._connect if isinstance(database, PooledDatabase) else database._connect
    with peewee.__exception_wrapper__:  # type: ignore[attr-defined]  # it makes the errors Peewee's
        return connect()


def _refuse_to_make_a_file(database: peewee.Database) -> None:
    """SQLite makes a file that it does not find, and the application may have removed its own."""
    if is_missing_file(database):
        raise peewee.OperationalError(f"{database.database} is gone")
