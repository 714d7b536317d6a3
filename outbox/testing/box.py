"""Make the outbox of one test: with the application's database and settings, and without background threads."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import peewee

from outbox import current_outbox
from outbox.core import Outbox
from outbox.current_outbox import is_configured, loaded_settings
from outbox.errors import SchemaError
from outbox.settings import OFF, Settings
from outbox.storage.peewee_database import is_private_to_a_thread
from outbox.testing.rolled_back import rolled_back
from outbox.testing.separate_registry import sandbox

# The settings of every test. Those of the application and of the marker are applied on top.
DEFAULTS = {"dispatch": OFF, "publish_seconds": 0, "backoff_jitter": False}


@contextmanager
def box_of_test(database: peewee.Database | None, *, rollback: bool = True, **settings: Any) -> Iterator[Outbox]:
    """Make an outbox the current one, in a sandbox and in a transaction that is rolled back at the end.

    - `database`: None for that of the application's outbox. Without one it is what OUTBOX_DATABASE_URL says, or else an
      SQLite database in memory.
    - `rollback`: False to let the test commit. What it stores stays.
    - `settings`: as for `outbox.configure`, on top of those of the application.
    """
    with ExitStack() as stack:
        box = _make(database, settings)
        stack.enter_context(_connections_closed(box))
        stack.enter_context(current_outbox.replaced_by(box))
        _create_missing_tables(box)
        stack.enter_context(sandbox())
        if rollback:
            for each in {id(db): db for db in (box.database, box.inbox.database)}.values():
                stack.enter_context(rolled_back(each))
        yield box


def _make(database: peewee.Database | None, settings: dict[str, Any]) -> Outbox:
    before = current_outbox.current() if is_configured() else None
    changed = settings_of_test(loaded_settings(), settings)
    if database is None and before is not None:
        database = before.database
    elif database is None and not changed.names_database:
        database = peewee.SqliteDatabase(":memory:")
    is_elsewhere = before is not None and before.inbox.database is not before.database
    inbox_database = before.inbox.database if before is not None and is_elsewhere else None
    return Outbox(changed, database=database, registry=current_outbox.registry, inbox_database=inbox_database)


def settings_of_test(settings: Settings, overrides: dict[str, Any]) -> Settings:
    """Return the application's settings with those of the test. Without Redis: nothing is shared with anyone."""
    changed = settings.changed(**DEFAULTS | overrides)
    return changed if "redis_url" in overrides else dataclasses.replace(changed, redis_url=None)


def _create_missing_tables(box: Outbox) -> None:
    with box.dialect.connection(create=True):
        try:
            box.check_schema()
        except SchemaError:
            box.create_tables()


@contextmanager
def _connections_closed(box: Outbox) -> Iterator[None]:
    """Close the connection at the end, if there was none before."""
    before = [database for database in (box.database, box.inbox.database) if database.is_closed()]
    yield
    for database in before:
        is_own = database is not getattr(current_outbox._current, "database", None)
        if not database.is_closed() and (is_own or not is_private_to_a_thread(database)):
            database.close()
