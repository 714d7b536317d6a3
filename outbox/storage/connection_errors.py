"""Recognise errors of database connections: a connection that is lost or refused, and a pool that has none left."""

from __future__ import annotations

import peewee
from playhouse import pool

# A connection was lost or refused, or the pool has none left: a later try with a new connection can succeed.
# (A server that has become a read-only standby raises an InternalError.)
CONNECTION_ERRORS = (
    peewee.OperationalError,
    peewee.InterfaceError,
    peewee.InternalError,
    pool.MaxConnectionsExceeded,
)


def is_pool_exhausted(error: BaseException | None) -> bool:
    """Return whether the error is, or was caused by, a connection pool that has no connection left."""
    while error is not None:
        if isinstance(error, pool.MaxConnectionsExceeded):
            return True
        error = error.__cause__
    return False
