"""Choose the dialect for the application's database."""

from __future__ import annotations

import peewee

from outbox.errors import SettingsError
from outbox.storage.async_database import is_async
from outbox.storage.async_postgres import AsyncPostgres
from outbox.storage.async_sqlite import AsyncSqlite
from outbox.storage.dialect import Dialect
from outbox.storage.peewee_database import place_of
from outbox.storage.postgres import Postgres
from outbox.storage.sqlite import Sqlite, warn_about_locking
from outbox.table_names import Tables


def dialect_of(database: peewee.Database, tables: Tables) -> Dialect:
    """Return the dialect of the database; raise SettingsError if the outbox does not work on it."""
    asynchronous = is_async(database)
    if isinstance(database, peewee.SqliteDatabase):
        if tables.schema is not None:
            raise SettingsError(
                f"OUTBOX_SCHEMA is {tables.schema!r}, but {place_of(database)} is SQLite, which has no schemas: "
                "leave it out. To keep several outboxes in one file, set OUTBOX_TABLE_PREFIX."
            )
        warn_about_locking(database)
        return AsyncSqlite(database, tables) if asynchronous else Sqlite(database, tables)
    if isinstance(database, peewee.PostgresqlDatabase):
        if asynchronous:
            return AsyncPostgres(database, tables)
        if "Psycopg3" not in type(getattr(database, "_adapter", None)).__name__:
            raise SettingsError(
                "The outbox needs psycopg 3, and this PostgresqlDatabase uses psycopg2. "
                "Install dramatiq-outbox[postgres] and pass prefer_psycopg3=True to the database."
            )
        return Postgres(database, tables)
    raise SettingsError(
        "The outbox works on Peewee's PostgresqlDatabase and SqliteDatabase, and on AsyncPostgresqlDatabase and "
        f"AsyncSqliteDatabase of playhouse.pwasyncio, not on {type(database).__name__}."
    )
