"""Recognise that a connection pool has no connection left: Peewee's pool raises MaxConnectionsExceeded."""

from __future__ import annotations

from playhouse import pool


def is_exhausted(error: BaseException | None) -> bool:
    """Return whether the error says, or was caused by, that the pool has no connection left."""
    while error is not None:
        if isinstance(error, pool.MaxConnectionsExceeded):
            return True
        error = error.__cause__
    return False
