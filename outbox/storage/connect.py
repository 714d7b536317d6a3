"""Open the database that a URL names (OUTBOX_DATABASE_URL), with a connection pool.

The options are chosen for several writers at once, and so that a lost connection is noticed soon.
"""

from __future__ import annotations

import sqlite3
import time
from typing import Any
from urllib.parse import unquote, urlsplit

import peewee
from playhouse import pool

from outbox.errors import SettingsError
from outbox.settings import truth

# How long SQLite waits for another writer.
BUSY_SECONDS = 10.0

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
        return _open_sqlite(unquote(parts.netloc + parts.path).removeprefix("/"))
    if parts.scheme in ("postgresql", "postgres", "psycopg3"):
        return _open_postgres(url, prepared_statements)
    raise SettingsError(
        "OUTBOX_DATABASE_URL must begin with postgresql:// or sqlite:///"
        f"{f', not {parts.scheme}:' if parts.scheme else ''}. "
        "For example: postgresql://app:secret@localhost:5432/app, or sqlite:///outbox.db"
    )


class EmbeddedDatabase(pool.PooledSqliteDatabase):  # type: ignore[misc]  # playhouse carries no types
    """SQLite in a file that several processes may open at the same time."""

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


def _open_sqlite(path: str) -> peewee.Database:
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
        pragmas={"busy_timeout": int(BUSY_SECONDS * 1000), "journal_mode": "wal"},
        lock_type="IMMEDIATE",
        timeout=10,
        check_same_thread=False,
    )
    return database


def _open_postgres(url: str, prepared_statements: bool) -> peewee.Database:
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
        parameters = POSTGRES_DEFAULTS | conninfo_to_dict(f"postgresql://{rest}")
    except Exception:
        # Without the driver's message: it quotes the URL, and with it the password.
        raise SettingsError(
            "OUTBOX_DATABASE_URL can't be read as postgresql://user:password@host:port/name; "
            "special characters in a password must be percent-encoded."
        ) from None
    if not parameters.get("dbname"):
        raise SettingsError("OUTBOX_DATABASE_URL names no database: postgresql://user:password@host:port/name")
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
        chosen = truth(ours[-1])
    except ValueError as error:
        raise SettingsError(f"{PREPARED_STATEMENTS} in OUTBOX_DATABASE_URL {error}.") from None
    others = "&".join("".join(pair) for pair in pairs if pair[0] != PREPARED_STATEMENTS)
    return f"{base}?{others}" if others else base, chosen
