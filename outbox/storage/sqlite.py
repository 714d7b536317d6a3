"""The dialect of SQLite."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import peewee

from outbox.storage import statements
from outbox.storage.dialect import Dialect, Row
from outbox.storage.peewee_database import is_private_to_a_thread
from outbox.table_names import Tables

logger = logging.getLogger(__name__)


class Sqlite(Dialect):
    name = "sqlite"
    earliest_time = ""

    def __init__(self, database: peewee.Database, tables: Tables) -> None:
        super().__init__(database, tables)
        self.statements = statements.sqlite(tables)

    def create_schema(self) -> None:
        """Do nothing: SQLite has no schemas, and `dialect_of` has refused the setting."""

    def run(self, statement: str, parameters: Sequence[object] = ()) -> Any:
        if self.database.is_closed():  # Peewee would connect by itself, and create the file
            self.check_file_exists()
        return super().run(statement, parameters)

    def _driver_in_transaction(self, connection: Any) -> bool:
        return bool(connection.in_transaction)

    def check_encoding(self) -> None:
        """Do nothing: between Python and SQLite all text is Unicode, however the file stores it."""

    def id(self, value: UUID) -> object:
        return value.hex

    def row_ids(self, values: Sequence[str]) -> object:
        return json.dumps(values)

    def seconds(self, value: float) -> object:
        return f"{value:.3f}"

    def parameters(self, row: Row) -> Row:
        return (self.id(row[0]), *row[1:-1], self.seconds(row[-1]))

    def lock_keys(self, keys: Iterable[str]) -> None:
        """Do nothing: SQLite has one writer at a time, and numbers are drawn by the writer."""

    def insert_many(self, rows: Sequence[Row]) -> list[Row | None]:
        return [self.insert(row) for row in rows]

    def claim(
        self, size: int, lease_id: UUID, lease_seconds: float, *, since: object, include_expired_leases: bool
    ) -> list[Row]:
        with self._writing():
            due = self.run(self.statements.due, (since, include_expired_leases, size)).fetchall()
            expired_ids = [id for id, has_expired in due if has_expired]
            chosen = expired_ids[:1] if expired_ids else [id for id, _ in due]
            if not chosen:
                return []
            parameters = (lease_id.hex, self.seconds(lease_seconds), json.dumps(chosen), bool(expired_ids))
            rows: list[Row] = self.run(self.statements.claim, parameters).fetchall()
            return rows

    def settle_rows(self, rows: Sequence[Row]) -> int:
        with self._writing():
            return sum(self.run(self.statements.settled, row).rowcount for row in rows)

    def _writing(self) -> Any:
        """Return a transaction that has the lock for writing, or a savepoint of the test's transaction."""
        return self.database.savepoint() if self.in_transaction else self.database.atomic("IMMEDIATE")

    @contextmanager
    def schema_lock(self) -> Iterator[None]:
        with self.database.atomic("IMMEDIATE"):
            yield


def warn_about_locking(database: peewee.SqliteDatabase) -> None:
    """Log a warning if two writers at the same time would get an error instead of waiting for each other."""
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
            "SQLite will raise 'database is locked' when the application and the outbox write at the same time. "
            "Open the database as SqliteDatabase(…, %s).",
            ", ".join(missing),
        )


def _file_is_wal(path: str) -> bool:
    """Return whether the file is in WAL mode: its byte 18 is 2. Asking SQLite would mean opening a connection."""
    try:
        with Path(path).open("rb") as file:
            return file.read(20)[18:19] == b"\x02"
    except OSError:
        return False
