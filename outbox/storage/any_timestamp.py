"""Read every timestamp that PostgreSQL can store, also those that Python can't represent.

These are 'infinity', '-infinity' and years before 1 or after 9999. This library writes none of them, but a row that was
changed by hand may have one, and psycopg raises an error for it. Without this module, operators could then see no row.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from outbox.storage.timestamp import EARLIEST, LATEST

if TYPE_CHECKING:
    import psycopg


@contextmanager
def any_timestamp(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Let the cursors that are made inside the block return EARLIEST or LATEST instead of raising an error.

    Other cursors are not changed: on the same connection the application may read timestamps in its own way.
    """
    usual: Any = connection.cursor_factory
    connection.cursor_factory = _tolerant(usual)
    try:
        yield
    finally:
        connection.cursor_factory = usual


@cache
def _tolerant(cursor: type[Any]) -> type[Any]:
    """Return a subclass of the connection's class of cursors that reads any timestamp."""
    from psycopg import DataError  # an extra: installed where PostgreSQL is used
    from psycopg.types.datetime import TimestamptzLoader

    class AnyTimestampLoader(TimestamptzLoader):
        def load(self, data: Any) -> Any:
            try:
                return super().load(data)
            except DataError:
                text = bytes(data)
                return EARLIEST if text.startswith(b"-") or text.endswith(b"BC") else LATEST

    class AnyTimestampCursor(cursor):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.adapters.register_loader("timestamptz", AnyTimestampLoader)

    return AnyTimestampCursor
