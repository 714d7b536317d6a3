"""The dialect of PostgreSQL, with psycopg 3."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import Any
from uuid import UUID

import peewee

from outbox.errors import EventNotStored, SchemaError, as_sentence
from outbox.storage import statements, timestamp
from outbox.storage.any_timestamp import any_timestamp
from outbox.storage.array_literal import array_of_ids, array_of_numbers, array_of_texts, array_of_timestamps
from outbox.storage.cached_cursor import CachedCursor, can_bypass_peewee
from outbox.storage.dialect import KIND, ORDERING_KEY, READ_SECONDS, SUBJECT, Dialect, Row
from outbox.storage.peewee_database import place_of
from outbox.table_names import Tables

# Positions in a row of parameters of INSERT_MANY, which begins with the event's number.
EVENT_TYPE, IDEMPOTENCY_KEY = 4, 9
# The names that SETTLED_POSTGRES has for the values of a settled row.
SETTLED_COLUMNS = ("status", "attempts", "due_at", "progress", "error", "is_delivered", "audience", "order_state")


class Postgres(Dialect):
    name = "postgres"
    earliest_time = "-infinity"

    # The key of the advisory lock, which all programs on the database share: "outbox" in ASCII.
    SCHEMA_LOCK_KEY = 0x6F7574626F78
    SCHEMA_LOCK_SECONDS = 10.0
    # It returns the limit that applied before.
    SET_TIMEOUT = "SELECT current_setting('statement_timeout'), set_config('statement_timeout', %s, true)"
    SET_LOCK_TIMEOUT = "SELECT current_setting('lock_timeout'), set_config('lock_timeout', %s, true)"
    UTF8 = "UTF8"
    ENCODINGS = (b"server_encoding", b"client_encoding")
    # libpq's transaction states ACTIVE, INTRANS and INERROR; IDLE is 0, and 4 means that the connection is lost.
    OPEN = (1, 2, 3)
    # The open states in which no statement has failed.
    COMMITTABLE = (1, 2)
    # Rows per bulk insert: enough that the time of the round trip hardly matters, few enough for a short statement.
    ROWS_PER_INSERT = 1_000
    # How the columns of an event's content are encoded: those of RESERVE_NUMBERS.
    CONTENT_ARRAYS = (array_of_ids, *[array_of_texts] * 8, array_of_numbers)
    # How the columns of INSERT_MANY are encoded, and those that INSERT_MANY_ORDERED has besides.
    ARRAYS = (array_of_numbers, *CONTENT_ARRAYS)
    ORDER_ARRAYS = (array_of_texts, array_of_texts, array_of_texts)
    DUE_ARRAYS = (array_of_timestamps, array_of_numbers)
    PLACE_ARRAY = (array_of_numbers,)

    def __init__(self, database: peewee.Database, tables: Tables) -> None:
        super().__init__(database, tables)
        self.statements = statements.postgres(tables)
        self._cached_cursor = CachedCursor()
        # The limit of the `bounded` block that this thread is in.
        self._bounds = threading.local()

    @property
    def can_commit(self) -> bool:
        return self.database.connection().pgconn.transaction_status in self.COMMITTABLE

    @property
    def is_connection_lost(self) -> bool:
        return bool(self.database.connection().closed)

    def _driver_in_transaction(self, connection: Any) -> bool:
        return connection.pgconn.transaction_status in self.OPEN

    @contextmanager
    def bounded(self, seconds: float = READ_SECONDS, *, may_fail: bool = False) -> Iterator[None]:
        outer: float = getattr(self._bounds, "seconds", math.inf)
        with self.connection():
            if seconds >= outer and not may_fail:
                yield
                return
            in_callers_transaction = self.in_transaction
            # Only for this transaction. A timeout for the session would stay on the server connection, and a pooler
            # such as PgBouncer may give that connection to another program afterwards.
            with self.atomic(), any_timestamp(self.database.connection()):
                milliseconds = int(min(seconds, outer) * 1000)
                before, _ = self.run(self.SET_TIMEOUT, (str(milliseconds),)).fetchone()
                self._bounds.seconds = min(seconds, outer)
                try:
                    yield
                finally:
                    self._bounds.seconds = outer
                if in_callers_transaction:
                    self.run(self.SET_TIMEOUT, (before,))

    @contextmanager
    def lock_limit(self) -> Iterator[None]:
        with self.connection():
            in_callers_transaction = self.in_transaction
            with self.atomic():
                before, _ = self.run(self.SET_LOCK_TIMEOUT, (str(int(self.lock_seconds * 1000)),)).fetchone()
                yield
                if in_callers_transaction:
                    self.run(self.SET_LOCK_TIMEOUT, (before,))

    def create_schema(self) -> None:
        schema = self.tables.schema
        # IF NOT EXISTS alone would need the right to create a schema, even where it exists.
        if schema is None or self.run("SELECT FROM pg_namespace WHERE nspname = %s", (schema,)).fetchone() is not None:
            return
        try:
            self.run(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
        except peewee.ProgrammingError as error:
            raise SchemaError(
                f"The schema {schema} (OUTBOX_SCHEMA) does not exist in {place_of(self.database)}, and could not be "
                f'created: {as_sentence(error)} Run `CREATE SCHEMA "{schema}" AUTHORIZATION …` with the role that runs '
                "`outbox init`, as a role that may create schemas."
            ) from error

    def check_encoding(self) -> None:
        # This needs no query: the server reports both settings to libpq at the start, and again when they change.
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
        # Look in the whole search path, as every other statement does. Peewee looks in its first schema only.
        return bool(self.run("SELECT to_regclass(%s) IS NOT NULL", (name,)).fetchone()[0])

    def columns_of(self, table: str) -> set[str]:
        statement = "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0"
        return {name for (name,) in self.run(statement, (table,)).fetchall()}

    def id(self, value: UUID) -> object:
        return value

    def row_ids(self, values: Sequence[str]) -> object:
        # One array literal, because psycopg would encode each id separately, in Python (see `array_literal.py`).
        return f"{{{','.join(values)}}}"

    def seconds(self, value: float) -> object:
        return float(value)

    def first_row(self, statement: str, parameters: Sequence[object]) -> Row | None:
        if not can_bypass_peewee(self.database):
            return super().first_row(statement, parameters)
        try:
            return self._cached_cursor.first_row(self.database.connection(), statement, parameters)
        except (peewee.OperationalError, peewee.ProgrammingError) as error:
            self.raise_schema_error(error)
            raise

    def select(self, query: Any) -> list[Any]:
        with any_timestamp(self.database.connection()):
            return super().select(query)

    def insert_many(self, rows: Sequence[Row]) -> list[Row | None]:
        numbers = self._draw_numbers(rows)
        numbered = [(number, *row) for number, row in zip(numbers, rows, strict=True)]
        numbered.sort(key=itemgetter(EVENT_TYPE, IDEMPOTENCY_KEY))
        is_ordered = any(row[ORDERING_KEY] is not None or row[SUBJECT] is not None for row in rows)
        stored: dict[int, Row] = {}
        for start in range(0, len(numbered), self.ROWS_PER_INSERT):
            columns = list(zip(*numbered[start : start + self.ROWS_PER_INSERT], strict=True))
            statement, arrays = self._ordered(columns, numbers[0]) if is_ordered else self._unordered(columns)
            for inserted, *times in self.run(statement, arrays).fetchall():
                created_at, next_attempt_at = map(timestamp.from_database, times)
                stored |= {number: (number, created_at, next_attempt_at) for number in inserted}
        return [stored.get(number) for number in numbers]

    def _unordered(self, columns: list[Row]) -> tuple[str, list[str]]:
        """Return INSERT_MANY and its parameters for rows that are all events without an ordering key or a subject."""
        del columns[ORDERING_KEY : SUBJECT + 1]
        encoders = (*self.ARRAYS, *self.DUE_ARRAYS)
        return self.statements.insert_many, [encode(column) for encode, column in zip(encoders, columns, strict=True)]

    def _ordered(self, columns: list[Row], first_number: int) -> tuple[str, list[str]]:
        """Return INSERT_MANY_ORDERED and its parameters; a row's place is its number, counted from the first."""
        del columns[KIND]
        columns.append(tuple(number - first_number for number in columns[0]))
        encoders = (*self.ARRAYS, *self.ORDER_ARRAYS, *self.DUE_ARRAYS, *self.PLACE_ARRAY)
        return self.statements.insert_many_ordered, [
            encode(column) for encode, column in zip(encoders, columns, strict=True)
        ]

    def lock_keys(self, keys: Iterable[str]) -> None:
        for key in sorted(set(keys)):  # in one order everywhere, so that two transactions can't deadlock
            self.run(self.statements.lock_key, (f"{self.tables.event} {key}",))

    def _draw_numbers(self, rows: Sequence[Row]) -> list[int]:
        """Return as many numbers of the sequence as there are rows, in ascending order."""
        drawn = [number for (number,) in self.run(self.statements.draw_numbers, (len(rows),)).fetchall()]
        return drawn or self._reserve_numbers(rows)

    def _reserve_numbers(self, rows: Sequence[Row]) -> list[int]:
        """Draw the numbers without a right to the sequence, with rows that are taken back at once."""
        reserved: dict[UUID, int] = {}
        with self.database.savepoint() as savepoint:
            for start in range(0, len(rows), self.ROWS_PER_INSERT):
                columns = list(zip(*rows[start : start + self.ROWS_PER_INSERT], strict=True))
                encoded = [encode(column) for encode, column in zip(self.CONTENT_ARRAYS, columns, strict=False)]
                reserved |= dict(self.run(self.statements.reserve_numbers, encoded).fetchall())
            savepoint.rollback()
        for id, _, _, event_type, _, _, _, _, key, *_ in rows:
            if id not in reserved:  # a trigger on the table has skipped the row, as it would skip the event
                raise EventNotStored(event_type, key, self.tables.event)
        return [reserved[row[0]] for row in rows]

    def claim(
        self, size: int, lease_id: UUID, lease_seconds: float, *, since: object, include_expired_leases: bool
    ) -> list[Row]:
        self.check_encoding()  # an event whose outcome can't be stored would be sent again and again
        parameters = (since, include_expired_leases, size, lease_id, float(lease_seconds))
        rows: list[Row] = self.run(self.statements.claim, parameters).fetchall()
        return rows

    def settle_rows(self, rows: Sequence[Row]) -> int:
        *_, lease_id = rows[0]
        by_id = {row_id: dict(zip(SETTLED_COLUMNS, values, strict=True)) for *values, row_id, _ in rows}
        parameters = (json.dumps(by_id), self.row_ids(list(by_id)), lease_id)
        return int(self.run(self.statements.settled, parameters).rowcount)

    @contextmanager
    def schema_lock(self) -> Iterator[None]:
        # At a stricter isolation level the snapshot would be taken before the lock is acquired, and would not contain
        # what the previous holder of the lock has changed.
        with self.database.atomic("READ COMMITTED"):
            self.run("SELECT pg_advisory_xact_lock(%s)", (self.SCHEMA_LOCK_KEY,))
            for statement in self.schema_timeout():
                self.run(statement)
            yield

    def schema_timeout(self) -> list[str]:
        # While an ALTER TABLE waits for its lock, every other statement on the table waits behind it.
        return [f"SET LOCAL lock_timeout = '{self.SCHEMA_LOCK_SECONDS:g}s'"]
