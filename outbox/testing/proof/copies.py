"""Throw-away copies of the application's databases.

The original is read once, and never written to. A first copy of it, the base, is copied again for each scenario.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import peewee
from playhouse.pool import PooledDatabase

from outbox.core import Outbox
from outbox.storage.async_database import is_async
from outbox.testing.proof.database_copy import Copy, Original, Tables, named
from outbox.testing.proof.postgres_copies import PostgresOriginal
from outbox.testing.proof.sqlite_copies import SqliteOriginal


class Copies:
    """A copy of each of the application's databases."""

    def __init__(self, copies: list[tuple[Original, Copy]]) -> None:
        self.each = copies

    @property
    def names(self) -> set[str]:
        return {copy.name for _, copy in self.each}

    def read(self) -> Tables:
        """Return the tables of all databases; with more than one, their names begin with the database's."""
        if len(self.each) == 1:
            return self.each[0][1].read()
        found = [(number, copy.read()) for number, (_, copy) in enumerate(self.each, 1)]
        return {f"database {number}: {name}": table for number, tables in found for name, table in tables.items()}

    def skip_numbers(self) -> None:
        for _, copy in self.each:
            copy.skip_numbers()

    def wait_until_unused(self) -> None:
        for _, copy in self.each:
            copy.wait_until_unused()

    @contextmanager
    def copied(self) -> Iterator[Copies]:
        """Yield copies of these copies; drop them at the end."""
        with ExitStack() as stack:
            found = []
            for original, base in self.each:
                found.append((original, original.copy(base)))
                stack.callback(found[-1][1].drop)
            yield Copies(found)

    def use(self) -> list[object]:
        """Connect the application's database objects to the copies; for the process of one call.

        Return the connections of the parent process. They must not be deleted here, because the parent still uses them.
        """
        return [_point(database, copy.name) for original, copy in self.each for database in original.objects]


def originals_of(box: Outbox) -> list[Original]:
    """Return the databases of the outbox and of its inbox."""
    objects = [[box.database], [box.inbox.database]]
    if box.inbox.database is box.database:
        objects.pop()
    if box.application_database is not box.database:
        objects[0].append(box.application_database)
    found: list[Original] = []
    for each in objects:
        kind = SqliteOriginal if isinstance(each[0], peewee.SqliteDatabase) else PostgresOriginal
        found.append(kind(*each))
    return found


@contextmanager
def bases(box: Outbox, most_megabytes: int) -> Iterator[Copies]:
    """Yield a first copy of each of the outbox's databases; drop them at the end, also after an interrupt."""
    originals = originals_of(box)
    try:
        yield Copies([(original, original.make_base(most_megabytes)) for original in originals])
    finally:
        with _uninterrupted():
            for original in originals:
                original.close()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ignore a further Ctrl-C inside the block: it would leave copies behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _point(database: Any, name: str) -> object:
    """Connect a database object to a copy, without closing the connections that the parent process still uses."""
    kept = [database._state, database.__dict__.get("_connections"), database.__dict__.get("_in_use")]
    if is_async(database):
        kept.append(database._pool)
        database._pool = None
        database._state = type(database._state)(release=database._release_conn)
    else:
        database._state = type(database._state)()
    database._lock = threading.RLock()  # another thread of the parent may have held it
    if isinstance(database, PooledDatabase):
        database._connections, database._in_use = [], {}
        database._pool_lock = threading.RLock()
        database._pool_available = threading.Condition(database._pool_lock)
    is_sqlite = isinstance(database, peewee.SqliteDatabase)
    database.database = name if is_sqlite else named(database, name)
    if "dbname" in database.connect_params:
        database.connect_params["dbname"] = name
    database.deferred = False
    return kept
