"""The database, and the little that differs between PostgreSQL and SQLite.

A `Dialect` turns the statements of `sql.py` into calls on a Peewee database. The connection is the calling thread's
own, so `emit` writes through the very connection of the caller's transaction.
"""

from __future__ import annotations

import json
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import peewee
from playhouse import pool

from outbox.errors import NotPermitted, SchemaError, SettingsError, TransactionRequired
from outbox.storage import statements as sql
from outbox.storage import timestamp
from outbox.storage.array_literal import array_of_ids, array_of_moments, array_of_numbers, array_of_texts
from outbox.storage.models import tables_in_use
from outbox.table_names import Tables

logger = logging.getLogger("outbox")
PEEWEE_LOG = logging.getLogger("peewee")

Row = tuple[Any, ...]

# When an event is due: no moment given, and so many seconds from now.
AT_ONCE = (None, 0.0)

# Where the databases come from whose `execute_sql` does no more than run a statement.
PLAIN = ("peewee", "playhouse.postgres_ext")

# What a lost, refused or exhausted connection looks like: trying again on a new one can help.
# (A server that has become a read-only standby answers with an InternalError.)
CONNECTION_ERRORS = (
    peewee.OperationalError,
    peewee.InterfaceError,
    peewee.InternalError,
    pool.MaxConnectionsExceeded,
)


class Dialect(ABC):
    """What the library asks of a database, beside running SQL."""

    name: str
    statements: sql.Statements
    # A moment before all others, as this database's timestamps compare.
    beginning: str

    def __init__(self, database: peewee.Database, tables: Tables) -> None:
        self.database = database
        self.tables = tables

    def run(self, statement: str, parameters: Sequence[object] = ()) -> Any:
        """Run one statement on the calling thread's connection; answers the driver's cursor."""
        try:
            return self.database.execute_sql(statement, parameters)
        except (peewee.OperationalError, peewee.ProgrammingError) as error:
            if self.says_no_table(error):
                raise self.no_tables() from None
            raise

    def says_no_table(self, error: peewee.PeeweeException) -> bool:
        """SQLite has only words for it, PostgreSQL a code, which no translation changes."""
        original = getattr(error, "orig", None)
        missing = f"no such table: {self.tables.prefix}"
        return getattr(original, "sqlstate", None) == "42P01" or missing in str(error)

    @property
    def place(self) -> str:
        """Where the tables are, for people: no user, no password."""
        return place_of(self.database) + self.tables.described

    def no_tables(self) -> SchemaError:
        return SchemaError(
            f"The outbox has no tables in {self.place} yet: run `outbox init` with OUTBOX_DATABASE_URL set to it, "
            "or `outbox init your.module` if that module configures it, or call outbox.create_tables()."
        )

    def row_of(self, statement: str, parameters: Sequence[object]) -> Row | None:
        """The first row that one statement answers, if any."""
        row: Row | None = self.run(statement, parameters).fetchone()
        return row

    def select(self, query: Any) -> list[Any]:
        """Run a Peewee query on this outbox's tables; returns its rows."""
        with tables_in_use(self.tables):
            return list(query.execute(self.database))

    def count(self, query: Any) -> int:
        """Return how many rows a Peewee query on this outbox's tables has."""
        with tables_in_use(self.tables):
            return int(query.count(self.database))

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open on this thread's connection, as the driver sees it.

        Peewee's own count misses a plain BEGIN and counts a `manual_commit` block that has not begun one.
        """
        if self.database.is_closed():
            return False  # asking would connect, and on SQLite make the file
        return self._driver_in_transaction(self.database.connection())

    @property
    def can_commit(self) -> bool:
        """Whether this thread's transaction is open and whole.

        After a statement has failed, PostgreSQL answers COMMIT with a rollback, and calls that no error.
        """
        return self.in_transaction

    @contextmanager
    def connection(self, *, create: bool = False) -> Iterator[None]:
        """A connection for this thread: the one it has, or one that is returned at the end; a broken one is not.

        Only with `create` is a database made that is not there.
        """
        if not create:
            self.check_that_it_exists()
        opened = self.database.connect(reuse_if_open=True)
        callers = not opened and self.in_transaction  # a transaction that is its owner's to end
        try:
            yield
        except CONNECTION_ERRORS:
            if not callers:
                self.discard_connection()
            raise
        finally:
            # A database in memory is gone with its connection.
            if opened and not self.database.is_closed() and not is_private_to_a_thread(self.database):
                self.database.close()

    def check_that_it_exists(self) -> None:
        """Raise SchemaError if connecting would make the database."""
        if self.database.is_closed() and is_absent(self.database):
            raise no_database(self.database)

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """A savepoint inside whatever transaction is open, or a transaction of its own."""
        if not self.in_transaction and self.database.in_transaction():
            raise TransactionRequired("Inside manual_commit() this needs a transaction: call db.begin() first.")
        with self.database.savepoint() if self.in_transaction else self.database.atomic():
            yield

    def discard_connection(self) -> None:
        """Close this thread's connection for good, with whatever transaction was left open on it."""
        database = self.database
        while database.in_transaction():
            database.pop_transaction()
        if database.is_closed():
            return
        if is_private_to_a_thread(database):
            if self.in_transaction:
                database.rollback()
            return  # it is gone with its connection
        try:
            close = database.manual_close if isinstance(database, pool.PooledDatabase) else database.close
            close()
        except peewee.PeeweeException as error:
            logger.debug("closing a discarded connection failed: %s", error)

    def schema_timeout(self) -> list[str]:
        """Return what a transaction that changes the tables has to set first."""
        return []

    @abstractmethod
    def create_schema(self) -> None:
        """Make the schema that the settings name, unless it is there."""

    @abstractmethod
    def check_encoding(self) -> None:
        """Raise SchemaError unless this thread's connection carries every text unchanged."""

    def has_table(self, name: str) -> bool:
        return bool(self.database.table_exists(name))

    def columns_of(self, table: str) -> set[str]:
        return {column.name for column in self.database.get_columns(table)}

    @abstractmethod
    def _driver_in_transaction(self, connection: Any) -> bool: ...

    @abstractmethod
    def id(self, value: UUID) -> object:
        """An id as the database keeps it."""

    def ids(self, values: Iterable[UUID]) -> object:
        """A list of ids as one parameter."""
        return self.row_ids([str(self.id(value)) for value in values])

    @abstractmethod
    def row_ids(self, values: Sequence[str]) -> object:
        """The same, of ids as a claim returned them."""

    @abstractmethod
    def seconds(self, value: float) -> object:
        """A duration as the parameter of `{after}` or `{before}`."""

    def insert(self, row: Row) -> Row | None:
        """Store an event, given the parameters of INSERT_LATER; answers what that returns, or None for a duplicate."""
        parameters = self.parameters(row)
        if row[-2:] != AT_ONCE:
            return _in_utc(self.row_of(self.statements.insert_later, parameters))
        return _in_utc(self.row_of(self.statements.insert, parameters[:-2]))

    def parameters(self, row: Row) -> Row:
        """An event's id, its fields and in how many seconds it is due, as the database takes them."""
        return row

    @abstractmethod
    def insert_many(self, rows: Sequence[Row]) -> list[Row | None]:
        """The same for many, in their order."""

    @abstractmethod
    def claim(
        self, size: int, lease_id: UUID, lease_seconds: float, *, since: object, include_expired_leases: bool
    ) -> list[Row]:
        """Lease what is due, from `since` on; the last column says whether it is one event, from an expired lease."""

    @abstractmethod
    def settle_rows(self, rows: Sequence[Row]) -> int:
        """Run SETTLED for each row; answers how many were hit."""

    @abstractmethod
    @contextmanager
    def schema_lock(self) -> Iterator[None]:
        """A transaction that only one process at a time can be in."""
        yield


class Postgres(Dialect):
    name = "postgres"
    beginning = "-infinity"

    # Any number that nobody else is likely to use: the lock is shared by all programs on the database.
    SCHEMA_LOCK_KEY = 0x6F7574626F78
    SCHEMA_LOCK_SECONDS = 10.0
    UTF8 = "UTF8"
    ENCODINGS = (b"server_encoding", b"client_encoding")
    # libpq's transaction states ACTIVE, INTRANS and INERROR; IDLE is 0, and 4 says that the connection is lost.
    OPEN = (1, 2, 3)
    WHOLE = (1, 2)
    # Rows per bulk insert: enough that the round trip is lost in the noise, few enough to keep the statement short.
    CHUNK = 1_000
    # How the columns of INSERT_MANY are written.
    ARRAYS = (
        array_of_numbers,
        array_of_ids,
        *[array_of_texts] * 8,
        array_of_numbers,
        array_of_moments,
        array_of_numbers,
    )

    def __init__(self, database: peewee.Database, tables: Tables) -> None:
        super().__init__(database, tables)
        self.statements = sql.postgres(tables)
        self._kept = _Kept()

    @property
    def can_commit(self) -> bool:
        return self.database.connection().pgconn.transaction_status in self.WHOLE

    def _driver_in_transaction(self, connection: Any) -> bool:
        return connection.pgconn.transaction_status in self.OPEN

    def create_schema(self) -> None:
        schema = self.tables.schema
        # IF NOT EXISTS alone would need the right to create one, even where it exists.
        if schema is None or self.run("SELECT FROM pg_namespace WHERE nspname = %s", (schema,)).fetchone() is not None:
            return
        try:
            self.run(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
        except peewee.ProgrammingError as error:
            raise SchemaError(
                f"The schema {schema} (OUTBOX_SCHEMA) does not exist in {place_of(self.database)}, and could not be "
                f'created: {error}. Run `CREATE SCHEMA "{schema}" AUTHORIZATION …` with the role that runs '
                "`outbox init`, as a role that may create schemas."
            ) from error

    def check_encoding(self) -> None:
        # The server has told both when the connection was made, and tells every change: this asks libpq alone.
        connection = self.database.connection().pgconn
        server, client = ((connection.parameter_status(name) or b"UTF8").decode() for name in self.ENCODINGS)
        if server != self.UTF8:
            raise SchemaError(
                f"The encoding of {place_of(self.database)} is {server}, and the outbox needs UTF8: it could not store "
                "every event and every outcome. Make a database with `CREATE DATABASE … TEMPLATE template0 ENCODING "
                "'UTF8'`, and move the tables there."
            )
        if client != self.UTF8:
            raise SchemaError(
                f"The connection to {place_of(self.database)} uses the encoding {client}, and the outbox needs UTF8: "
                "it could not read every event. Set client_encoding to UTF8: in the database's URL, as an argument of "
                "PostgresqlDatabase(…), and in PGCLIENTENCODING if that is set."
            )

    def has_table(self, name: str) -> bool:
        # Wherever the search path finds it, as every other statement does; Peewee looks in its first schema only.
        return bool(self.run("SELECT to_regclass(%s) IS NOT NULL", (name,)).fetchone()[0])

    def columns_of(self, table: str) -> set[str]:
        statement = "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0"
        return {name for (name,) in self.run(statement, (table,)).fetchall()}

    def id(self, value: UUID) -> object:
        return value

    def row_ids(self, values: Sequence[str]) -> object:
        # As PostgreSQL writes an array: psycopg would look at each of them in Python.
        return f"{{{','.join(values)}}}"

    def seconds(self, value: float) -> object:
        return float(value)

    def row_of(self, statement: str, parameters: Sequence[object]) -> Row | None:
        # A cursor that runs the same statement again knows how to write its parameters and how to read its answer:
        # that saves a quarter of the time. Whoever listens to Peewee, or has replaced what it does, is not passed by.
        database = self.database
        if (
            database.is_closed()
            or database.query_hooks
            or PEEWEE_LOG.isEnabledFor(logging.DEBUG)
            or database.execute_sql.__module__ not in PLAIN
        ):
            return super().row_of(statement, parameters)
        connection = database.connection()
        cursor, self._kept.cursor = self._kept.cursor, None  # nobody else's while it is in use
        if cursor is None or cursor.connection is not connection:
            cursor = connection.cursor()
        try:
            with peewee.__exception_wrapper__:  # type: ignore[attr-defined]  # it makes the errors Peewee's
                row: Row | None = cursor.execute(statement, parameters).fetchone()
        except (peewee.OperationalError, peewee.ProgrammingError) as error:
            if self.says_no_table(error):
                raise self.no_tables() from None
            raise
        self._kept.cursor = cursor
        return row

    def insert_many(self, rows: Sequence[Row]) -> list[Row | None]:
        numbers = self._draw_numbers(len(rows))
        numbered = [(number, *row) for number, row in zip(numbers, rows, strict=True)]
        numbered.sort(key=itemgetter(4, 9))  # by event type and idempotency key
        stored: dict[int, Row] = {}
        for start in range(0, len(numbered), self.CHUNK):
            columns = zip(*numbered[start : start + self.CHUNK], strict=True)
            arrays = [write(column) for write, column in zip(self.ARRAYS, columns, strict=True)]
            for taken, *moments in self.run(self.statements.insert_many, arrays).fetchall():
                created_at, next_attempt_at = map(timestamp.from_database, moments)
                stored |= {number: (number, created_at, next_attempt_at) for number in taken}
        return [stored.get(number) for number in numbers]

    def _draw_numbers(self, count: int) -> list[int]:
        try:
            return [number for (number,) in self.run(self.statements.draw_numbers, (count,)).fetchall()]
        except peewee.ProgrammingError as error:
            if getattr(getattr(error, "orig", None), "sqlstate", None) != "42501":
                raise
            raise NotPermitted(
                f"emit_many draws numbers from the sequence of {self.tables.event}, and this role may not: {error}. "
                f"Run `GRANT USAGE ON SEQUENCE {self.tables.in_schema(self.tables.name('event') + '_seq_seq')} TO …`, "
                "or call emit for each event, which needs no right on the sequence."
            ) from error

    def claim(
        self, size: int, lease_id: UUID, lease_seconds: float, *, since: object, include_expired_leases: bool
    ) -> list[Row]:
        self.check_encoding()  # what can't be settled must not be sent: it would be sent again and again
        parameters = (since, include_expired_leases, size, lease_id, float(lease_seconds))
        rows: list[Row] = self.run(self.statements.claim, parameters).fetchall()
        return rows

    def settle_rows(self, rows: Sequence[Row]) -> int:
        # psycopg sends them in one go and adds up the row counts.
        with peewee.__exception_wrapper__:  # type: ignore[attr-defined]  # it makes the errors Peewee's
            cursor = self.database.cursor()
            cursor.executemany(self.statements.settled, rows)
        return int(cursor.rowcount)

    @contextmanager
    def schema_lock(self) -> Iterator[None]:
        # At a stricter level the snapshot would be older than the lock, and miss what the last holder did.
        with self.database.atomic("READ COMMITTED"):
            self.run("SELECT pg_advisory_xact_lock(%s)", (self.SCHEMA_LOCK_KEY,))
            for statement in self.schema_timeout():
                self.run(statement)
            yield

    def schema_timeout(self) -> list[str]:
        # While a change waits for a table's lock, everything else on the table waits behind it.
        return [f"SET LOCAL lock_timeout = '{self.SCHEMA_LOCK_SECONDS:g}s'"]


class Sqlite(Dialect):
    name = "sqlite"
    beginning = ""

    def __init__(self, database: peewee.Database, tables: Tables) -> None:
        super().__init__(database, tables)
        self.statements = sql.sqlite(tables)

    def create_schema(self) -> None:
        """Do nothing: SQLite has no schemas, and `dialect_of` has refused the setting."""

    def run(self, statement: str, parameters: Sequence[object] = ()) -> Any:
        if self.database.is_closed():  # Peewee would connect by itself
            self.check_that_it_exists()
        return super().run(statement, parameters)

    def _driver_in_transaction(self, connection: Any) -> bool:
        return bool(connection.in_transaction)

    def check_encoding(self) -> None:
        """Accept it: between Python and SQLite all text is Unicode, however the file keeps it."""

    def id(self, value: UUID) -> object:
        return value.hex

    def row_ids(self, values: Sequence[str]) -> object:
        return json.dumps(values)

    def seconds(self, value: float) -> object:
        return f"{value:.3f}"

    def parameters(self, row: Row) -> Row:
        return (self.id(row[0]), *row[1:-1], self.seconds(row[-1]))

    def insert_many(self, rows: Sequence[Row]) -> list[Row | None]:
        return [self.insert(row) for row in rows]

    def claim(
        self, size: int, lease_id: UUID, lease_seconds: float, *, since: object, include_expired_leases: bool
    ) -> list[Row]:
        with self.database.atomic("IMMEDIATE"):
            due = self.run(self.statements.due, (since, include_expired_leases, size)).fetchall()
            expired_ids = [id for id, has_expired in due if has_expired]
            chosen = expired_ids[:1] if expired_ids else [id for id, _ in due]
            if not chosen:
                return []
            parameters = (lease_id.hex, self.seconds(lease_seconds), json.dumps(chosen), bool(expired_ids))
            rows: list[Row] = self.run(self.statements.claim, parameters).fetchall()
            return rows

    def settle_rows(self, rows: Sequence[Row]) -> int:
        with self.database.atomic("IMMEDIATE"):
            return sum(self.run(self.statements.settled, row).rowcount for row in rows)

    @contextmanager
    def schema_lock(self) -> Iterator[None]:
        with self.database.atomic("IMMEDIATE"):
            yield


def _in_utc(row: Row | None) -> Row | None:
    """What INSERT or INSERT_LATER has returned. Of one moment only, an event is due when it is created."""
    if row is None:
        return None
    seq, *moments = row
    created_at, *due_at = map(timestamp.from_database, moments)
    return seq, created_at, due_at[0] if due_at else created_at


class _Kept(threading.local):
    """A thread's cursor, on the connection that it used last."""

    cursor: Any = None


def place_of(database: peewee.Database) -> str:
    """Which database it is, for people: no user, no password."""
    name = str(database.database)
    if isinstance(database, peewee.SqliteDatabase):
        return f"sqlite:///{name}"
    if "://" in name:
        parts = urlsplit(name)
        return f"postgresql://{parts.netloc.rpartition('@')[2]}{parts.path}"
    host, port = (database.connect_params.get(key) for key in ("host", "port"))
    return f"postgresql://{host or ''}{f':{port}' if port else ''}/{name}"


def no_database(database: peewee.Database) -> SchemaError:
    return SchemaError(
        f"There is no database {place_of(database)} yet: run `outbox init` to make it, or `outbox init your.module` if "
        "that module configures it, or call outbox.create_tables(), or outbox.inbox.create_tables() where there is no "
        "outbox. If the application has one elsewhere, set OUTBOX_DATABASE_URL to it."
    )


def behind_proxy(database: peewee.Database | peewee.Proxy) -> peewee.Database:
    """The database itself, should the application keep it behind Peewee's proxy."""
    if not isinstance(database, peewee.Proxy):
        return database
    if database.obj is None:
        raise SettingsError("The database proxy is empty: call its initialize() before outbox.configure().")
    found: peewee.Database = database.obj
    return found


def dialect_of(database: peewee.Database, tables: Tables) -> Dialect:
    """The dialect of the application's database, or a clear refusal."""
    if isinstance(database, peewee.SqliteDatabase):
        if tables.schema is not None:
            raise SettingsError(
                f"OUTBOX_SCHEMA is {tables.schema!r}, but {place_of(database)} is SQLite, which has no schemas: "
                "leave it out. To keep several outboxes in one file, set OUTBOX_TABLE_PREFIX."
            )
        _warn_about_sqlite(database)
        return Sqlite(database, tables)
    if isinstance(database, peewee.PostgresqlDatabase):
        if "Psycopg3" not in type(getattr(database, "_adapter", None)).__name__:
            raise SettingsError(
                "The outbox needs psycopg 3, and this PostgresqlDatabase uses psycopg2. "
                "Install dramatiq-outbox[postgres] and pass prefer_psycopg3=True to the database."
            )
        return Postgres(database, tables)
    raise SettingsError(
        f"The outbox works on Peewee's PostgresqlDatabase and SqliteDatabase, not on {type(database).__name__}."
    )


def is_private_to_a_thread(database: peewee.Database) -> bool:
    """SQLite in memory: every thread sees a database of its own."""
    return isinstance(database, peewee.SqliteDatabase) and str(database.database) in ("", ":memory:")


def is_absent(database: peewee.Database) -> bool:
    """Return whether it is an SQLite file that does not exist: connecting would make an empty one."""
    if not isinstance(database, peewee.SqliteDatabase) or database.deferred or is_private_to_a_thread(database):
        return False
    name = str(database.database)
    return not name.startswith("file:") and not Path(name).exists()


def _warn_about_sqlite(database: peewee.SqliteDatabase) -> None:
    if is_private_to_a_thread(database) or database.deferred:
        return
    missing = []
    pragmas = {
        str(name).lower(): str(value).lower() for name, value in dict(getattr(database, "_pragmas", None) or ()).items()
    }
    if pragmas.get("journal_mode") != "wal" and not _file_is_wal(str(database.database)):
        missing.append('pragmas={"journal_mode": "wal"}')
    if str(getattr(database, "_lock_type", None)).upper() not in ("IMMEDIATE", "EXCLUSIVE"):
        missing.append('lock_type="IMMEDIATE"')
    if missing:
        logger.warning(
            "SQLite will answer 'database is locked' when the application and the outbox write at once. "
            "Open it as SqliteDatabase(…, %s).",
            ", ".join(missing),
        )


def _file_is_wal(path: str) -> bool:
    # Byte 18 of the file says how it is written: 2 is WAL. Asking SQLite would mean opening a connection.
    try:
        with Path(path).open("rb") as file:
            return file.read(20)[18:19] == b"\x02"
    except OSError:
        return False
