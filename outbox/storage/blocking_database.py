"""Open a blocking database beside an asynchronous one: the same tables, for everything that is not `emit`.

Workers, reports, commands and `create_tables` run in threads, and use blocking drivers: psycopg and sqlite3. They open
their connections with the parameters of the application's asynchronous database.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from typing import Any

import peewee

from outbox.errors import SettingsError
from outbox.settings import INLINE, Settings
from outbox.storage.async_database import is_async
from outbox.storage.connect import open_postgres, open_sqlite
from outbox.storage.peewee_database import behind_proxy, is_private_to_a_thread, place_of

# Parameters of asyncpg that say nothing about where and how to connect.
WITHOUT_MEANING = {
    "command_timeout", "max_cacheable_statement_size", "max_cached_statement_lifetime",
    "max_inactive_connection_lifetime", "max_queries", "record_class", "connection_class", "loop", "setup", "reset",
}  # fmt: skip
# Parameters that libpq has, under the same name.
SAME = ("user", "passfile", "service", "servicefile", "target_session_attrs", "krbsrvname", "gsslib")


def blocking_beside(database: peewee.Database, given: peewee.Database | None, settings: Settings) -> peewee.Database:
    """Return the application's database, or, if that is asynchronous, a blocking one for the same tables."""
    if not is_async(database):
        if given is not None:
            raise SettingsError(
                f"blocking_database goes with an asynchronous database, and {place_of(database)} is a blocking "
                f"{type(database).__name__}: leave it out."
            )
        return database
    if settings.dispatch == INLINE:
        raise SettingsError(
            "OUTBOX_DISPATCH=inline delivers in the thread that emits, and on an asynchronous database that is the "
            "thread of the event loop. Use `dramatiq`, or `off` and call process_pending_events in a thread."
        )
    if given is not None:
        return behind_proxy(given)
    return open_beside(database, prepared_statements=settings.prepared_statements)


def open_beside(database: Any, *, prepared_statements: bool) -> peewee.Database:
    """Return a blocking database with the tables of this asynchronous one; raise SettingsError if that can't be."""
    if is_private_to_a_thread(database):
        raise SettingsError(
            "The asynchronous SQLite database is in memory, so the outbox's workers and reports could not see it, and "
            "would deliver nothing. Use a file: AsyncSqliteDatabase('app.db')."
        )
    if isinstance(database, peewee.SqliteDatabase):
        pragmas: Any = getattr(database, "_pragmas", None) or ()
        return open_sqlite(str(database.database), pragmas=dict(pragmas))
    parameters = dict(database.connect_params)
    if parameters.pop("statement_cache_size", None) == 0:
        prepared_statements = False
    return open_postgres(_libpq_parameters(database, parameters), prepared_statements=prepared_statements)


def _libpq_parameters(database: peewee.Database, given: dict[str, Any]) -> dict[str, Any]:
    """Return libpq's parameters for the connection that asyncpg makes with these."""
    name = str(database.database)
    parameters: dict[str, Any] = _from_dsn(name) if "://" in name else {"dbname": name}
    for key, value in given.items():
        if value is None or key in WITHOUT_MEANING:
            continue
        converted = _convert(key, value)
        if converted is None:
            raise SettingsError(
                f"The outbox can't open a blocking connection to {place_of(database)} with asyncpg's parameter {key}. "
                "Its workers and reports need one: pass outbox.configure(database=db, blocking_database=…), a "
                "PostgresqlDatabase with prefer_psycopg3=True for the same database."
            )
        parameters |= converted
    return parameters


def _from_dsn(dsn: str) -> dict[str, Any]:
    from psycopg.conninfo import conninfo_to_dict

    return dict(conninfo_to_dict(dsn))


def _convert(key: str, value: Any) -> dict[str, Any] | None:
    """Return libpq's parameters for one of asyncpg's; None if there are none."""
    if key in SAME:
        return {key: str(value)}
    convert = _CONVERSIONS.get(key)
    return None if convert is None else convert(value)


def _joined(key: str) -> Callable[[Any], dict[str, Any]]:
    """Return a conversion of one value, or of a list of values for several hosts."""
    return lambda value: {key: ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)}


def _password(value: Any) -> dict[str, Any] | None:
    return {"password": value} if isinstance(value, str) else None  # asyncpg also takes a function


def _ssl(value: Any) -> dict[str, Any] | None:
    if isinstance(value, ssl.SSLContext):
        return None
    if isinstance(value, str):
        return {"sslmode": value}
    return {"sslmode": "verify-full", "sslrootcert": "system"} if value else {"sslmode": "disable"}


def _server_settings(value: Mapping[str, Any]) -> dict[str, Any]:
    settings = {name: str(each) for name, each in value.items()}
    found = {"application_name": settings.pop("application_name")} if "application_name" in settings else {}
    if settings:
        escaped = {name: each.replace("\\", "\\\\").replace(" ", "\\ ") for name, each in settings.items()}
        found["options"] = " ".join(f"-c {name}={each}" for name, each in escaped.items())
    return found


_CONVERSIONS: dict[str, Callable[[Any], dict[str, Any] | None]] = {
    "host": _joined("host"),
    "port": _joined("port"),
    "dsn": _from_dsn,
    "password": _password,
    "ssl": _ssl,
    "timeout": lambda value: {"connect_timeout": max(2, round(value))},
    "server_settings": _server_settings,
}
