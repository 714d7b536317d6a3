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

# How playhouse.pwasyncio's pools begin the error; its class is that of other errors.
ASYNC_POOL_EXHAUSTED = "Timed out acquiring connection from pool"


def is_statement_timeout(error: BaseException) -> bool:
    """Return whether a statement was cancelled because it took longer than PostgreSQL's statement_timeout."""
    return getattr(getattr(error, "orig", None), "sqlstate", None) == "57014"


def is_lock_timeout(error: BaseException) -> bool:
    """Return whether a statement failed because it waited too long for a lock that another session holds."""
    is_busy = getattr(getattr(error, "orig", None), "sqlite_errorname", "").startswith("SQLITE_BUSY")
    return is_busy or getattr(getattr(error, "orig", None), "sqlstate", None) == "55P03"


def is_pool_exhausted(error: BaseException | None) -> bool:
    """Return whether the error is, or was caused by, a connection pool that has no connection left."""
    while error is not None:
        if isinstance(error, pool.MaxConnectionsExceeded):
            return True
        if isinstance(error, peewee.OperationalError) and ASYNC_POOL_EXHAUSTED in str(error):
            return True
        error = error.__cause__
    return False
