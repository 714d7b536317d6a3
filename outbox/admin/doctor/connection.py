"""Check the connection to PostgreSQL: a connection pooler with prepared statements, and the TCP timeout."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from uuid import uuid4

from outbox.admin.doctor.check import Context, Finding, note, ok, problem
from outbox.storage.private_connection import new_connection

BACKEND = "SELECT pg_backend_pid()"
# How often two connections are compared. A pooler that pools by transaction usually shows it the first time.
COMPARISONS = 5

SET_TO_FALSE = (
    "Set OUTBOX_PREPARED_STATEMENTS=false for all processes; if the application opens the database itself, pass "
    "prepare_threshold=None to PostgresqlDatabase(…)."
)


def pooler(context: Context) -> Iterator[Finding]:
    """Check that statements are not prepared behind a pooler that pools by transaction, such as PgBouncer.

    Such a pooler may run the next transaction on a server connection that lacks the prepared statement.
    """
    connection = context.box.database.connection()
    # A pooler makes up the process id that a connection gets when it is opened.
    if connection.info.backend_pid == _backend(connection):
        yield ok("There is no connection pooler between this process and PostgreSQL.")
    elif connection.prepare_threshold is None:
        yield ok("There is a connection pooler before PostgreSQL, and statements are not prepared.")
    elif not _keeps_names(context, connection):
        yield ok("There is a connection pooler before PostgreSQL, and it supports prepared statements.")
    elif _shares_connections(context):
        yield problem(
            "Statements are prepared, and a connection pooler before PostgreSQL gives each transaction another server "
            "connection, as PgBouncer does with pool_mode = transaction: emits fail inside the caller's transaction, "
            "and claims and the writing of outcomes fail too.",
            SET_TO_FALSE,
        )
    else:
        yield note(
            "There is a connection pooler before PostgreSQL, and statements are prepared. That works if each client "
            "keeps its server connection (PgBouncer's pool_mode = session); otherwise emits fail.",
            SET_TO_FALSE,
        )


def network(context: Context) -> Iterator[Finding]:
    """Check that a TCP timeout limits how long a statement waits for a database host that is gone."""
    connection = context.box.database.connection()
    if connection.info.host.startswith("/") or not hasattr(socket, "TCP_USER_TIMEOUT"):
        yield ok("The database is on this host, or this operating system has no tcp_user_timeout.")
        return
    milliseconds = int(connection.info.get_parameters().get("tcp_user_timeout", 0))
    if milliseconds > 0:
        yield ok(
            f"If the database's host is gone, statements fail after {milliseconds / 1000:g} s without acknowledgement."
        )
        return
    yield note(
        "The connection has no tcp_user_timeout: if the database's host is gone while a statement is running, the "
        "process waits for about 15 minutes.",
        "Pass tcp_user_timeout=15000 (milliseconds) to PostgresqlDatabase(…), or put it into OUTBOX_DATABASE_URL.",
    )


def _backend(connection: Any) -> int:
    return int(connection.execute(BACKEND).fetchone()[0])


def _keeps_names(context: Context, connection: Any) -> bool:
    """Return whether PostgreSQL gets the names of prepared statements unchanged.

    PgBouncer 1.21 and later can replace them by names of its own (max_prepared_statements), and then prepares the
    statements again where they are missing. All statements here run on one server connection, since they are in the
    check's transaction; the prepared statement is removed from it.
    """
    name = f"outbox_doctor_{uuid4().hex}"
    connection.pgconn.prepare(name.encode(), b"SELECT 1")
    found = context.rows("SELECT 1 FROM pg_prepared_statements WHERE name = %s", name)
    if found:
        context.box.dialect.run(f"DEALLOCATE {name}")
    return bool(found)


def _shares_connections(context: Context) -> bool:
    """Return whether two connections got the same server connection, or one of them got two."""
    database = context.box.database
    with closing(new_connection(database)) as one, closing(new_connection(database)) as other:
        seen = {_backend(one)}
        for _ in range(COMPARISONS):
            if _backend(other) in seen:
                return True
            seen.add(_backend(one))
        return len(seen) > 1
