"""A database that is lost: how an error tells that, and waiting for it to come back."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
from typing import TYPE_CHECKING

import peewee
from playhouse import pool

from outbox.storage.connection_errors import CONNECTION_ERRORS

if TYPE_CHECKING:
    from outbox.core import Outbox

logger = logging.getLogger("outbox")

PAUSE_SECONDS = 1.0
# PostgreSQL's codes, or what they begin with: no connection, no resources, a server that goes down or crashed, a
# system error, and one that has become a standby. Without a code it is the connection that was lost.
POSTGRES_OUTAGES = ("08", "53", "57P", "58", "25006")
# A file that is locked, can't be read or written, or is on a disk that is full.
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
    """Whether the database is lost. After a deadlock it isn't, nor after a timeout: those are the handler's own."""
    if not isinstance(error, CONNECTION_ERRORS):
        return False
    if isinstance(error, pool.MaxConnectionsExceeded):
        return True
    original = getattr(error, "orig", None)
    if original is None:
        return False  # Peewee's own, about a mistake, such as closing a connection inside a transaction
    if isinstance(error, peewee.InterfaceError):
        return True
    if isinstance(original, sqlite3.Error):
        return getattr(original, "sqlite_errorcode", 0) & 0xFF in SQLITE_OUTAGES  # the rest of it gives details
    code = getattr(original, "sqlstate", None)
    return code is None or code.startswith(POSTGRES_OUTAGES)


def is_over(box: Outbox, stopped: threading.Event) -> bool:
    """Wait until the database answers; whether it did before the stop."""
    logger.warning("the database can't be used: waiting for it")
    while not stopped.wait(PAUSE_SECONDS):
        with contextlib.suppress(*CONNECTION_ERRORS):
            for dialect in {box.dialect, box.inbox.dialect}:
                with dialect.connection():
                    dialect.run("SELECT 1")
            logger.info("the database is back")
            return True
    return False
