"""What lies between this process and PostgreSQL: a connection pooler, and a network that may lose a host."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from uuid import uuid4

from outbox.admin.doctor.check import Context, Finding, note, ok, problem
from outbox.storage.private_connection import new_connection

BACKEND = "SELECT pg_backend_pid()"
# How often two clients are compared. One that pools by transaction usually shows it the first time.
COMPARISONS = 5

SET_TO_FALSE = (
    "Set OUTBOX_PREPARED_STATEMENTS=false for all processes; if the application opens the database itself, pass "
    "prepare_threshold=None to PostgresqlDatabase(…)."
)


def pooler(context: Context) -> Iterator[Finding]:
    """Look for PgBouncer and its like together with prepared statements, which it may lose between transactions."""
    connection = context.box.database.connection()
    # The process id that the connection was given at its start is the pooler's invention.
    if connection.info.backend_pid == _backend(connection):
        yield ok("No connection pooler stands between this process and PostgreSQL.")
    elif connection.prepare_threshold is None:
        yield ok("A connection pooler stands before PostgreSQL, and statements are not prepared.")
    elif not _keeps_names(context, connection):
        yield ok("A connection pooler stands before PostgreSQL, and looks after prepared statements itself.")
    elif _shares_connections(context):
        yield problem(
            "A connection pooler stands before PostgreSQL and gives each transaction another server connection, as "
            "PgBouncer does with pool_mode = transaction, and statements are prepared: emits fail inside the caller's "
            "transaction, and so do claims and outcomes.",
            SET_TO_FALSE,
        )
    else:
        yield note(
            "A connection pooler stands before PostgreSQL, and statements are prepared. That is right if each client "
            "keeps its server connection (PgBouncer's pool_mode = session); if not, emits fail.",
            SET_TO_FALSE,
        )


def network(context: Context) -> Iterator[Finding]:
    """Look for how long a statement waits for a host that has vanished."""
    connection = context.box.database.connection()
    if connection.info.host.startswith("/") or not hasattr(socket, "TCP_USER_TIMEOUT"):
        yield ok("The database is on this host, or this system can't limit the wait for one that vanishes.")
        return
    milliseconds = int(connection.info.get_parameters().get("tcp_user_timeout", 0))
    if milliseconds > 0:
        yield ok(
            f"A database host that vanishes is noticed after {milliseconds / 1000:g} s without an acknowledgement."
        )
        return
    yield note(
        "The connection has no tcp_user_timeout: should the database's host vanish while a statement is on its way, "
        "the process waits for a quarter of an hour.",
        "Pass tcp_user_timeout=15000 (milliseconds) to PostgresqlDatabase(…), or put it into OUTBOX_DATABASE_URL.",
    )


def _backend(connection: Any) -> int:
    return int(connection.execute(BACKEND).fetchone()[0])


def _keeps_names(context: Context, connection: Any) -> bool:
    """Return whether PostgreSQL gets the names of prepared statements unchanged.

    PgBouncer 1.21 and later can give them names of its own (max_prepared_statements), and then prepares them again
    wherever they are missing. This runs inside the check's transaction: nothing is left on the server connection.
    """
    name = f"outbox_doctor_{uuid4().hex}"
    connection.pgconn.prepare(name.encode(), b"SELECT 1")
    found = context.rows("SELECT 1 FROM pg_prepared_statements WHERE name = %s", name)
    if found:
        context.box.dialect.run(f"DEALLOCATE {name}")
    return bool(found)


def _shares_connections(context: Context) -> bool:
    """Return whether two clients were given one server connection, or one client two."""
    database = context.box.database
    with closing(new_connection(database)) as one, closing(new_connection(database)) as other:
        seen = {_backend(one)}
        for _ in range(COMPARISONS):
            if _backend(other) in seen:
                return True
            seen.add(_backend(one))
        return len(seen) > 1
