"""Decide whether an error means that the database is unavailable, and wait until it is available again.

An outage is not a failure of the entry. The delivery is not counted, and the consumer reads no entries until the outage
is over.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
from collections.abc import Iterable

import peewee
from playhouse import pool

from outbox.storage.connection_errors import CONNECTION_ERRORS
from outbox.storage.dialect import Dialect

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
# SQLSTATE codes of PostgreSQL, or their first characters: no connection, no resources, a server that is shutting down
# or has crashed, a system error, and a server that has become a standby.
POSTGRES_OUTAGES = ("08", "53", "57P", "58", "25006")
# The file is locked, can't be read or written, or is on a disk that is full.
SQLITE_OUTAGES = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PROTOCOL,
    }
)


def is_outage(error: BaseException) -> bool:
    """Return whether an error means that the database is unavailable. A deadlock or a statement timeout does not."""
    if not isinstance(error, CONNECTION_ERRORS):
        return False
    if isinstance(error, pool.MaxConnectionsExceeded):
        return True
    original = getattr(error, "orig", None)
    if original is None:
        return False  # Peewee raises such an error for a mistake in the code, for example a close in a transaction
    if isinstance(error, peewee.InterfaceError):
        return True
    if isinstance(original, sqlite3.Error):
        return getattr(original, "sqlite_errorcode", 0) & 0xFF in SQLITE_OUTAGES  # the higher bits are details
    code = getattr(original, "sqlstate", None)
    # An error without a code means that the connection was lost.
    return code is None or code.startswith(POSTGRES_OUTAGES)


def wait_until_over(
    dialects: Iterable[Dialect], stopped: threading.Event, retry_seconds: float = RETRY_SECONDS
) -> bool:
    """Wait until all databases respond, and return True. Return False if the consumer is stopped before that."""
    logger.warning("the database is unavailable; waiting until it responds")
    databases = set(dialects)
    while not stopped.wait(retry_seconds):
        with contextlib.suppress(*CONNECTION_ERRORS):
            for dialect in databases:
                with dialect.connection():
                    dialect.run("SELECT 1")
            logger.info("the database is available again")
            return True
    return False
