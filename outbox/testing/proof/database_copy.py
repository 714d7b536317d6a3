"""One throw-away copy of a database, and the original: what PostgreSQL and SQLite have in common."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import Counter
from typing import Any
from urllib.parse import urlsplit

import peewee

from outbox.testing.proof.errors import CannotProve

# By table: its columns, and how often each row is in it.
Rows = Counter[tuple[str | None, ...]]
Tables = dict[str, tuple[tuple[str, ...], Rows]]

MEGABYTE = 1024 * 1024


class Copy(ABC):
    """One copy of one database."""

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def read(self) -> Tables:
        """Return every row of every table."""

    @abstractmethod
    def skip_numbers(self) -> None:
        """Let sequences skip numbers, so that new rows get other numbers than in other copies."""

    @abstractmethod
    def wait_until_unused(self) -> None:
        """Wait until the connections of processes that have ended are gone, and their transactions rolled back."""

    @abstractmethod
    def drop(self) -> None:
        """Delete the copy."""


class Original(ABC):
    """One of the application's databases, and the objects of Peewee that are connected to it."""

    def __init__(self, database: peewee.Database, *others: peewee.Database) -> None:
        self.database: Any = database
        self.objects = (database, *others)

    @abstractmethod
    def make_base(self, most_megabytes: int) -> Copy:
        """Copy the original; raise CannotProve if that is not possible, or if it is larger than allowed."""

    @abstractmethod
    def copy(self, base: Copy) -> Copy:
        """Copy the base."""

    @abstractmethod
    def close(self) -> None:
        """Drop the copies that still exist, and release what `make_base` has opened."""


def named(database: Any, name: str) -> str:
    """Return the value of `database.database` for another database on the same server. It may be a URL."""
    given = str(database.database)
    return urlsplit(given)._replace(path=f"/{name}").geturl() if "://" in given else name


def check_size(size: int, most_megabytes: int) -> None:
    """Raise CannotProve if the database is too large to be copied again and again."""
    if size > most_megabytes * MEGABYTE:
        raise CannotProve(
            f"The database has {size // MEGABYTE:,} MB, and it is copied for every scenario. Use one with less data, "
            "such as that of your tests, or allow more: --most-megabytes, most_megabytes=…."
        )


def unique_name() -> str:
    """Return the name of a copy: it begins with the process that has made it."""
    return f"outbox_prove_{os.getpid()}_{os.urandom(4).hex()}"
