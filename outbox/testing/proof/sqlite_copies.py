"""Copies of an SQLite database: files in a temporary folder. A database in memory becomes a file, too."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from outbox.storage.peewee_database import is_private_to_a_thread
from outbox.storage.private_connection import new_connection
from outbox.testing.proof.database_copy import Copy, Original, Tables, check_size, unique_name
from outbox.testing.proof.errors import CannotProve

# How many numbers AUTOINCREMENT skips.
SKIPPED = 1_000


class SqliteOriginal(Original):
    _folder: Path | None = None

    def make_base(self, most_megabytes: int) -> Copy:
        if getattr(self.database, "_attached", None):
            raise CannotProve(
                "The database has other files attached (attach), and these are not copied: they could be written to."
            )
        self._folder = Path(tempfile.mkdtemp(prefix="outbox-prove-"))
        file = self._folder / "base.sqlite3"
        self._fill(file, most_megabytes)
        return SqliteCopy(str(file))

    def copy(self, base: Copy) -> Copy:
        assert self._folder is not None  # noqa: S101  (for the type checker)
        file = self._folder / f"{unique_name()}.sqlite3"
        with contextlib.closing(sqlite3.connect(base.name)) as connection:
            connection.execute("PRAGMA wal_checkpoint")  # what a process that has ended left in the log
        shutil.copyfile(base.name, file)
        return SqliteCopy(str(file))

    def close(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _fill(self, file: Path, most_megabytes: int) -> None:
        is_open = is_private_to_a_thread(self.database) or not self.database.is_closed()
        if is_open and self.database.connection().in_transaction:
            # The handler must find what a test has written and not committed. The backup API would wait for its commit.
            content = self.database.connection().serialize()
            check_size(len(content), most_megabytes)
            file.write_bytes(content)
        else:
            source = self.database.connection() if is_open else new_connection(self.database)
            size = source.execute("PRAGMA page_count").fetchone()[0] * source.execute("PRAGMA page_size").fetchone()[0]
            with contextlib.closing(sqlite3.connect(file)) as target:
                check_size(size, most_megabytes)
                source.backup(target)
            if not is_open:
                source.close()
        if is_private_to_a_thread(self.database):
            with contextlib.closing(sqlite3.connect(file)) as target:
                target.execute("PRAGMA journal_mode = wal")  # as files should be: memory has no such mode


class SqliteCopy(Copy):
    def read(self) -> Tables:
        found: Tables = {}
        with contextlib.closing(sqlite3.connect(self.name)) as connection:
            listed = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name").fetchall()
            for (name,) in listed:
                if not name.startswith("sqlite_"):
                    cursor = connection.execute(f"SELECT * FROM {_quoted(name)}")  # noqa: S608  (a table's own name)
                    columns = tuple(column[0] for column in cursor.description)
                    found[name] = columns, Counter(tuple(map(_text, row)) for row in cursor)
        return found

    def skip_numbers(self) -> None:
        with contextlib.closing(sqlite3.connect(self.name)) as connection, connection:
            if connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'sqlite_sequence'").fetchone():
                connection.execute("UPDATE sqlite_sequence SET seq = seq + ?", (SKIPPED,))

    def wait_until_unused(self) -> None:
        """Do nothing: the locks of a process end with it, and the next connection rolls back what it left."""

    def drop(self) -> None:
        for ending in ("", "-wal", "-shm", "-journal"):
            Path(self.name + ending).unlink(missing_ok=True)


def _quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return value.hex() if isinstance(value, bytes) else repr(value)
