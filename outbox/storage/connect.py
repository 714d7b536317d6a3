"""Open the database that a URL names (OUTBOX_DATABASE_URL), with a connection pool.

The options are chosen for several writers at once, and so that a lost connection is noticed soon.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

import peewee
from playhouse import pool

from outbox.errors import SettingsError
from outbox.setting_values import parse_truth

# How long SQLite waits for another writer.
BUSY_SECONDS = 10.0

# The mode of a new SQLite file: only its owner may read and write it.
PRIVATE_MODE = 0o600

# A host that vanished without closing its connections is noticed within a minute; TCP alone would wait for hours.
# Keepalives test an idle connection. tcp_user_timeout ends one that has sent data and gets no acknowledgement for it
# (keepalives don't run then). libpq ignores tcp_user_timeout where the operating system has no such option.
POSTGRES_DEFAULTS: dict[str, Any] = {
    "application_name": "dramatiq-outbox",
    "connect_timeout": 10,
    "target_session_attrs": "read-write",  # if the URL names several hosts, use the primary, also after a failover
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,  # milliseconds
    "client_encoding": "UTF8",
}

# So that a reader and a writer don't wait for each other.
WAL = {"journal_mode": "wal"}

# The only parameter of the URL that is not libpq's, which would refuse it.
PREPARED_STATEMENTS = "prepared_statements"


def open_database(url: str, *, prepared_statements: bool = True) -> peewee.Database:
    """Return the database at `url`, pooled: `postgresql://user:password@host:port/name` or `sqlite:///path`.

    `prepared_statements=False` is for a pooler that gives each transaction another server connection, such as
    PgBouncer: statements that were prepared on one connection don't exist on the others. `?prepared_statements=false`
    in the URL means the same, and takes precedence.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        raise SettingsError("OUTBOX_DATABASE_URL can't be read as a URL.") from None
    if parts.scheme == "sqlite" and not parts.netloc:
        return open_sqlite(unquote(parts.netloc + parts.path).removeprefix("/"))
    if parts.scheme in ("postgresql", "postgres", "psycopg3"):
        return _open_postgres_url(url, prepared_statements)
    raise SettingsError(
        "OUTBOX_DATABASE_URL must begin with postgresql:// or sqlite:///"
        f"{f', not {parts.scheme}:' if parts.scheme else ''}. "
        "For example: postgresql://app:secret@localhost:5432/app, or sqlite:///outbox.db"
    )


class EmbeddedDatabase(pool.PooledSqliteDatabase):  # type: ignore[misc]  # playhouse carries no types
    """SQLite in a file that several processes may open at the same time. A new file is readable by its owner only."""

    def _connect(self) -> Any:
        create_private_file(str(self.database))
        return super()._connect()

    def _set_pragmas(self, conn: sqlite3.Connection) -> None:
        # Switching a new file to WAL needs a lock for which SQLite does not wait, whatever the busy timeout.
        ends_at = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                super()._set_pragmas(conn)
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() >= ends_at:
                    raise
                time.sleep(0.01)
            else:
                return


def create_private_file(path: str) -> None:
    """Create an empty file with the mode 0600 if there is none, whatever the umask; leave an existing file as it is.

    SQLite takes an empty file for a new database, and gives the files `-wal` and `-shm` beside it the same mode. An
    error is ignored: SQLite meets the same one when it opens the file, and reports it. An existing file is not opened,
    because closing it would release the locks that SQLite holds on it in this process.
    """
    with contextlib.suppress(OSError):
        # The real path, since O_EXCL refuses a symbolic link to a file that is still to be created.
        os.close(os.open(os.path.realpath(path), os.O_CREAT | os.O_EXCL | os.O_WRONLY, PRIVATE_MODE))


def open_sqlite(path: str, *, pragmas: Mapping[str, Any] = WAL) -> peewee.Database:
    """Return the SQLite database in this file, pooled."""
    if sqlite3.sqlite_version_info < (3, 35):
        raise SettingsError(f"The outbox needs SQLite 3.35 or later; this Python has {sqlite3.sqlite_version}.")
    if not path or path == ":memory:":
        raise SettingsError(
            "OUTBOX_DATABASE_URL names no file: SQLite in memory is private to each thread. "
            "Use sqlite:///relative/path.db or sqlite:////absolute/path.db"
        )
    # `synchronous` stays FULL, SQLite's default: a committed event survives a power failure.
    database: peewee.Database = EmbeddedDatabase(
        path,
        max_connections=64,
        pragmas={"busy_timeout": int(BUSY_SECONDS * 1000), **pragmas},
        lock_type="IMMEDIATE",
        timeout=10,
        check_same_thread=False,
    )
    return database


def _open_postgres_url(url: str, prepared_statements: bool) -> peewee.Database:
    try:
        from psycopg.conninfo import conninfo_to_dict  # an extra: installed where PostgreSQL is used
    except ImportError:
        raise SettingsError(
            "OUTBOX_DATABASE_URL names PostgreSQL, but psycopg is not installed: "
            "pip install 'dramatiq-outbox[postgres]'"
        ) from None
    _, _, rest = url.partition("://")
    rest, chosen = _split_prepared_statements(rest)
    if chosen is not None:
        prepared_statements = chosen
    try:
        # libpq reads the URL itself: percent-encoding, several hosts, sslmode and all its other parameters.
        parameters = dict(conninfo_to_dict(f"postgresql://{rest}"))
    except Exception:
        # Without the driver's message: it quotes the URL, and with it the password.
        raise SettingsError(
            "OUTBOX_DATABASE_URL can't be read as postgresql://user:password@host:port/name; "
            "special characters in a password must be percent-encoded."
        ) from None
    if not parameters.get("dbname"):
        raise SettingsError("OUTBOX_DATABASE_URL names no database: postgresql://user:password@host:port/name")
    return open_postgres(parameters, prepared_statements=prepared_statements)


def open_postgres(parameters: Mapping[str, Any], *, prepared_statements: bool) -> peewee.Database:
    """Return the database that these parameters of libpq name, pooled."""
    parameters = {**POSTGRES_DEFAULTS, **parameters}
    if not prepared_statements:
        parameters["prepare_threshold"] = None
    database: peewee.Database = pool.PooledPostgresqlDatabase(
        parameters.pop("dbname"), max_connections=64, timeout=10, prefer_psycopg3=True, **parameters
    )
    return database


def _split_prepared_statements(rest: str) -> tuple[str, bool | None]:
    """Return the URL without `prepared_statements=…`, and its value, or None without one."""
    base, mark, query = rest.rpartition("?")
    pairs = [pair.partition("=") for pair in query.split("&")] if mark else []
    ours = [value for name, _, value in pairs if name == PREPARED_STATEMENTS]
    if not ours:
        return rest, None
    try:
        chosen = parse_truth(ours[-1])
    except ValueError as error:
        raise SettingsError(f"{PREPARED_STATEMENTS} in OUTBOX_DATABASE_URL {error}.") from None
    others = "&".join("".join(pair) for pair in pairs if pair[0] != PREPARED_STATEMENTS)
    return f"{base}?{others}" if others else base, chosen
