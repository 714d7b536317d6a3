"""Run statements on the application's database. The subclasses hold what differs between PostgreSQL and SQLite.

A `Dialect` runs the statements of `statements.py` through a Peewee database, on the calling thread's own connection. So
`emit` uses the connection of the caller's transaction. `dialects.py` chooses the subclass.
"""

from __future__ import annotations

import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any
from uuid import UUID

import peewee
from playhouse import pool

from outbox.errors import SchemaError, TransactionRequired
from outbox.storage import timestamp
from outbox.storage.connection_errors import CONNECTION_ERRORS
from outbox.storage.ids import as_uuid
from outbox.storage.models import EVENT, tables_in_use
from outbox.storage.peewee_database import is_missing_file, is_private_to_a_thread, missing_file_error, place_of
from outbox.storage.statements import Statements
from outbox.table_names import Tables

logger = logging.getLogger(__name__)

Row = tuple[Any, ...]

# How long a statement may take with which a tool for operators reads, and how long one that changes something may wait
# for a lock.
READ_SECONDS = 10.0
LOCK_SECONDS = 10.0
# The last two parameters of INSERT_LATER for an event that is due at once: no time is given, and zero seconds from now.
AT_ONCE = (None, 0.0)
# The positions of the ordering key, the order state, the kind and the subject in the row that `insert` gets.
ORDERING_KEY, ORDER_STATE, KIND, SUBJECT = -6, -5, -4, -3


class Dialect(ABC):
    """One outbox's tables in one database."""

    name: str
    statements: Statements
    # Sorts before every timestamp, as this database compares them.
    earliest_time: str
    lock_seconds = LOCK_SECONDS

    def __init__(self, database: peewee.Database, tables: Tables) -> None:
        self.database = database
        self.tables = tables

    @property
    def place(self) -> str:
        """Return where the tables are, for messages, without user and password."""
        return place_of(self.database) + self.tables.described

    # Running statements

    def run(self, statement: str, parameters: Sequence[object] = ()) -> Any:
        """Run one statement on the calling thread's connection; return the driver's cursor."""
        try:
            return self.database.execute_sql(statement, parameters)
        except (peewee.OperationalError, peewee.ProgrammingError) as error:
            self.raise_schema_error(error)
            raise

    def first_row(self, statement: str, parameters: Sequence[object]) -> Row | None:
        """Run one statement; return its first row, if any."""
        row: Row | None = self.run(statement, parameters).fetchone()
        return row

    def select(self, query: Any) -> list[Any]:
        """Run a Peewee query on this outbox's tables; return its rows."""
        with self._own_tables():
            return list(query.execute(self.database))

    def execute(self, query: Any) -> None:
        """Run a Peewee query that changes this outbox's tables."""
        with self._own_tables():
            query.execute(self.database)

    def count(self, query: Any) -> int:
        """Return how many rows a Peewee query on this outbox's tables has."""
        with self._own_tables():
            return int(query.count(self.database))

    @contextmanager
    def _own_tables(self) -> Iterator[None]:
        """Let Peewee queries use this outbox's tables; raise SchemaError if these are missing or too old."""
        try:
            with tables_in_use(self.tables):
                yield
        except (peewee.OperationalError, peewee.ProgrammingError) as error:
            self.raise_schema_error(error)
            raise

    def now(self) -> datetime:
        """Return the time, by the database's clock."""
        return timestamp.from_database(self.run(self.statements.now).fetchone()[0])

    def is_missing_table(self, error: peewee.PeeweeException) -> bool:
        """Return whether the error says that one of the outbox's tables does not exist.

        PostgreSQL has an error code for it, which is the same in every language of its messages; SQLite only a text.
        """
        original = getattr(error, "orig", None)
        missing = f"no such table: {self.tables.prefix}"
        return getattr(original, "sqlstate", None) == "42P01" or missing in str(error)

    def is_missing_column(self, error: peewee.PeeweeException) -> bool:
        """Return whether the error says that a column does not exist, as in tables of an older version."""
        original = getattr(error, "orig", None)
        return getattr(original, "sqlstate", None) == "42703" or re.search(r"no (such )?column", str(error)) is not None

    def raise_schema_error(self, error: peewee.PeeweeException) -> None:
        """Raise SchemaError if one of our statements failed because the tables are missing or too old."""
        if self.is_missing_table(error):
            raise self.missing_tables_error() from None
        if self.is_missing_column(error):
            raise SchemaError(
                f"The outbox's tables in {self.place} are older than this version of the library needs for this: run "
                "`outbox init`, with the settings or the module that name the database, or call outbox.create_tables()."
            ) from error

    def missing_tables_error(self) -> SchemaError:
        return SchemaError(
            f"The outbox has no tables in {self.place} yet: run `outbox init` with OUTBOX_DATABASE_URL set to it, "
            "or `outbox init your.module` if that module configures it, or call outbox.create_tables()."
        )

    def check_caller(self, caller: str) -> None:  # noqa: B027  (a blocking dialect refuses nothing)
        """Raise AsyncRequired if `caller`, a function of the public API, can't run statements where it was called."""

    # Connections and transactions

    @property
    def in_transaction(self) -> bool:
        """Return whether a transaction is open on this thread's connection, as the driver sees it.

        Peewee's own count misses a plain BEGIN, and counts a `manual_commit` block that has not begun a transaction.
        """
        if self.database.is_closed():
            return False  # `connection()` would connect, and on SQLite create the file
        return self._driver_in_transaction(self.database.connection())

    @abstractmethod
    def _driver_in_transaction(self, connection: Any) -> bool: ...

    @property
    def can_commit(self) -> bool:
        """Return whether this thread's transaction is open, and a COMMIT would commit it.

        After a statement has failed, PostgreSQL rolls back at COMMIT, and reports no error.
        """
        return self.in_transaction

    @property
    def is_connection_lost(self) -> bool:
        """Return whether the server has ended this thread's open connection, as far as the driver has noticed."""
        return False

    @contextmanager
    def connection(self, *, create: bool = False) -> Iterator[None]:
        """Give this thread a connection inside the block: the one that it has, or one that is closed at the end.

        If the connection fails, it is closed and not returned to the pool, unless the caller's transaction was open on
        it before the block: then the caller ends it. A missing database file is created only with `create`.
        """
        if not create:
            self.check_file_exists()
        opened = self.database.connect(reuse_if_open=True)
        in_callers_transaction = not opened and self.in_transaction
        try:
            yield
        except CONNECTION_ERRORS:
            if not in_callers_transaction:
                self.discard_connection()
            raise
        finally:
            # Closing the connection would delete a database in memory.
            if opened and not self.database.is_closed() and not is_private_to_a_thread(self.database):
                self.database.close()

    def check_file_exists(self) -> None:
        """Raise SchemaError if connecting would create the database's file."""
        if self.database.is_closed() and is_missing_file(self.database):
            raise missing_file_error(self.database)

    @contextmanager
    def atomic(self) -> Iterator[None]:
        """Run the block in a savepoint of the transaction that is open, or else in a transaction of its own."""
        if not self.in_transaction and self.database.in_transaction():
            raise TransactionRequired("Inside manual_commit() this needs a transaction: call db.begin() first.")
        with self.database.savepoint() if self.in_transaction else self.database.atomic():
            yield

    @contextmanager
    def bounded(self, seconds: float = READ_SECONDS, *, may_fail: bool = False) -> Iterator[None]:
        """Give this thread a connection inside the block, on which a statement fails after this many seconds.

        It is for reading. On PostgreSQL a statement would otherwise wait for as long as another session locks the
        table. On SQLite a reader does not wait for writers. Inside another such block the shorter limit applies.
        `may_fail`: the caller continues after an error, so the block gets a savepoint of its own.
        """
        with self.connection():
            yield

    @contextmanager
    def lock_limit(self) -> Iterator[None]:
        """Give this thread a connection inside the block, on which no statement waits long for a lock: it fails.

        It is for the actions of operators: each statement may take as long as it has to do, but must not wait for ever
        behind another session. On PostgreSQL the block is a transaction. On SQLite a writer waits no longer than the
        database's timeout.
        """
        with self.connection():
            yield

    def discard_connection(self) -> None:
        """Close this thread's connection, and don't return it to the pool. An open transaction is rolled back."""
        database = self.database
        while database.in_transaction():
            database.pop_transaction()
        if database.is_closed():
            return
        if is_private_to_a_thread(database):
            if self.in_transaction:
                database.rollback()
            return  # closing the connection would delete the database
        try:
            close = database.manual_close if isinstance(database, pool.PooledDatabase) else database.close
            close()
        except peewee.PeeweeException as error:
            logger.debug("closing a discarded connection failed: %s", error)

    def release_connection(self, *, is_broken: bool = False) -> None:
        """Close this thread's connection, or return it to the pool; discard it if it is broken or in a transaction."""
        if self.database.is_closed():
            return
        if is_broken or self.database.in_transaction() or self.in_transaction:
            self.discard_connection()
        else:
            self.database.close()

    # The tables

    @abstractmethod
    def create_schema(self) -> None:
        """Create the schema that OUTBOX_SCHEMA names, unless it exists."""

    @abstractmethod
    def check_encoding(self) -> None:
        """Raise SchemaError unless the database and this thread's connection carry every text unchanged."""

    @abstractmethod
    @contextmanager
    def schema_lock(self) -> Iterator[None]:
        """Run the block in a transaction that only one process at a time can be in."""
        yield

    def schema_timeout(self) -> list[str]:
        """Return the statements that a transaction which changes the tables runs first."""
        return []

    def has_table(self, name: str) -> bool:
        return bool(self.database.table_exists(name))

    def columns_of(self, table: str) -> set[str]:
        return {column.name for column in self.database.get_columns(table)}

    # Parameters

    @abstractmethod
    def id(self, value: UUID) -> object:
        """Return an id as a parameter."""

    def ids(self, values: Iterable[UUID]) -> object:
        """Return a list of ids as one parameter."""
        return self.row_ids([str(self.id(value)) for value in values])

    @abstractmethod
    def row_ids(self, values: Sequence[str]) -> object:
        """Return a list of ids, as a claim returned them, as one parameter."""

    @abstractmethod
    def seconds(self, value: float) -> object:
        """Return a duration as the parameter of `{after}` or `{before}`."""

    def parameters(self, row: Row) -> Row:
        """Return the row for `insert` with its values in the form that the database takes."""
        return row

    # Storing, claiming and settling events

    def insert(self, row: Row) -> Row | None:
        """Store a row of any kind, given INSERT_LATER's parameters, with what `Draft` has before the time.

        Return its number, when it was created and when it is due, or None if its idempotency key is a duplicate.
        """
        parameters, statements = self.parameters(row), self.statements
        content, (ordering_key, order_state, kind, subject) = parameters[:ORDERING_KEY], row[ORDERING_KEY:-2]
        if subject is not None:
            more = (kind, ordering_key, order_state, subject)
            return _in_utc(self.first_row(statements.insert_with_subject, (*more, *content, *parameters[-2:])))
        now, later = statements.insert, statements.insert_later
        if kind != EVENT:
            content, now, later = (kind, *content), statements.insert_kind, statements.insert_kind_later
        elif ordering_key is not None:
            content = (ordering_key, order_state, *content)
            now, later = statements.insert_ordered, statements.insert_ordered_later
        if row[-2:] == AT_ONCE:
            return _in_utc(self.first_row(now, content))
        return _in_utc(self.first_row(later, content + parameters[-2:]))

    def find_untried(self, row: Row) -> UUID | None:
        """Return the id of the untried event of the same kind, type, key and tenant, given what `insert` is given."""
        found = self.first_row(self.statements.find_untried, (row[3], row[8], row[KIND], row[7]))
        return None if found is None else as_uuid(found[0])

    def replace(self, row: Row, id: UUID | None = None) -> Row | None:
        """Give an untried event of the same kind, type, key and tenant this content, given what `insert` is given.

        With an `id`, only the event with this id is replaced. Return its id, number, when it was created and when it is
        due, or None if there is no such event, or it was attempted.
        """
        parameters = self.parameters(row)
        _, aggregate_type, aggregate_id, event_type, *content, key, most = parameters[:ORDERING_KEY]
        ordering_key, state, kind, subject, *due = parameters[ORDERING_KEY:]
        content = [aggregate_type, aggregate_id, *content, most, ordering_key, state, subject, *due]
        same_key = (*content, event_type, key, kind, row[7])
        if id is None:
            found = self.first_row(self.statements.replace, same_key)
        else:
            found = self.first_row(self.statements.replace_row, (*same_key, self.id(id)))
        return None if found is None else (as_uuid(found[0]), *(_in_utc(found[1:]) or ()))

    def set_aside(self, row: Row) -> None:
        """Free the idempotency key of the event of the same kind, type, key and tenant."""
        event_type, tenant_id, key, kind = row[3], row[7], row[8], row[KIND]
        self.run(self.statements.set_aside, (event_type, key, kind, tenant_id))

    @abstractmethod
    def lock_keys(self, keys: Iterable[str]) -> None:
        """Wait until no other transaction holds the locks of these ordering keys; hold them until this one ends."""

    @abstractmethod
    def insert_many(self, rows: Sequence[Row]) -> list[Row | None]:
        """Store many rows, all of them events; return for each, in the order of `rows`, what `insert` returns."""

    @abstractmethod
    def claim(
        self, size: int, lease_id: UUID, lease_seconds: float, *, since: object, include_expired_leases: bool
    ) -> list[Row]:
        """Lease up to `size` events that are due, from the due time `since` on; return their rows.

        If one of them had a lease that expired, it is claimed alone: the last column is then true.
        """

    @abstractmethod
    def settle_rows(self, rows: Sequence[Row]) -> int:
        """Settle each of these rows, given SETTLED_SQLITE's parameters; return how many events were updated.

        They have one lease, and each row is there once.
        """


def _in_utc(row: Row | None) -> Row | None:
    """Return what INSERT or INSERT_LATER returned, in UTC.

    INSERT returns only created_at: the event is due at that time.
    """
    if row is None:
        return None
    seq, *times = row
    created_at, *due_at = map(timestamp.from_database, times)
    return seq, created_at, due_at[0] if due_at else created_at
