"""Find out facts about the application's Peewee database without a connection to it."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import peewee

from outbox.errors import SchemaError, SettingsError


def place_of(database: peewee.Database) -> str:
    """Return the address of the database for messages, without user and password."""
    name = str(database.database)
    if isinstance(database, peewee.SqliteDatabase):
        return f"sqlite:///{name}"
    if "://" in name:
        parts = urlsplit(name)
        return f"postgresql://{parts.netloc.rpartition('@')[2]}{parts.path}"
    host, port = (database.connect_params.get(key) for key in ("host", "port"))
    return f"postgresql://{host or ''}{f':{port}' if port else ''}/{name}"


def behind_proxy(database: peewee.Database | peewee.Proxy) -> peewee.Database:
    """Return the database itself if the application passed one of Peewee's proxies."""
    if not isinstance(database, peewee.Proxy):
        return database
    if database.obj is None:
        raise SettingsError("The database proxy is empty: call its initialize() before outbox.configure().")
    found: peewee.Database = database.obj
    return found


def is_private_to_a_thread(database: peewee.Database) -> bool:
    """Return whether it is SQLite in memory: every thread sees a database of its own."""
    return isinstance(database, peewee.SqliteDatabase) and str(database.database) in ("", ":memory:")


def is_missing_file(database: peewee.Database) -> bool:
    """Return whether it is an SQLite file that does not exist: connecting would create an empty one."""
    if not isinstance(database, peewee.SqliteDatabase) or database.deferred or is_private_to_a_thread(database):
        return False
    name = str(database.database)
    return not name.startswith("file:") and not Path(name).exists()


def missing_file_error(database: peewee.Database) -> SchemaError:
    return SchemaError(
        f"There is no database {place_of(database)} yet: run `outbox init` to make it, or `outbox init your.module` if "
        "that module configures it, or call outbox.create_tables(), or outbox.inbox.create_tables() where there is no "
        "outbox. If the application has one elsewhere, set OUTBOX_DATABASE_URL to it."
    )
