"""Check the connection to PostgreSQL: a connection pooler with prepared statements, and the TCP timeout."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from uuid import uuid4

from outbox.admin.doctor.check import Context, Finding, note, ok, problem
from outbox.storage.private_connection import new_connection

SERVER_PID = "SELECT pg_backend_pid()"
# How often `_shares_connections` compares two connections. If the pooler pools by transaction, usually the first
# comparison shows it.
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
    # When a connection is opened, a pooler reports a process id of its own, not that of PostgreSQL's process.
    if connection.info.backend_pid == _server_pid(connection):
        yield ok("There is no connection pooler between this process and PostgreSQL.")
    elif connection.prepare_threshold is None:
        yield ok("There is a connection pooler in front of PostgreSQL, and statements are not prepared.")
    elif not _keeps_statement_names(context, connection):
        yield ok("There is a connection pooler in front of PostgreSQL, and it supports prepared statements.")
    elif _shares_connections(context):
        yield problem(
            "Statements are prepared, and a connection pooler in front of PostgreSQL gives each transaction another "
            "server connection, as PgBouncer does with pool_mode = transaction. So emits fail inside the caller's "
            "transaction, and workers can neither claim events nor store outcomes.",
            SET_TO_FALSE,
        )
    else:
        yield note(
            "There is a connection pooler in front of PostgreSQL, and statements are prepared. That works if each "
            "client keeps its server connection (PgBouncer's pool_mode = session); otherwise emits fail.",
            SET_TO_FALSE,
        )


def network(context: Context) -> Iterator[Finding]:
    """Check that a TCP timeout limits how long a statement waits if the database's host disappears."""
    connection = context.box.database.connection()
    if connection.info.host.startswith("/") or not hasattr(socket, "TCP_USER_TIMEOUT"):
        yield ok("The database is on this host, or this operating system has no tcp_user_timeout.")
        return
    milliseconds = int(connection.info.get_parameters().get("tcp_user_timeout", 0))
    if milliseconds > 0:
        yield ok(
            f"If the database's host disappears, statements fail after {milliseconds / 1000:g} s without an "
            "acknowledgement."
        )
        return
    yield note(
        "The connection has no tcp_user_timeout: if the database's host disappears while a statement is running, the "
        "process waits for about 15 minutes.",
        "Pass tcp_user_timeout=15000 (milliseconds) to PostgresqlDatabase(…), or put it into OUTBOX_DATABASE_URL.",
    )


def _server_pid(connection: Any) -> int:
    return int(connection.execute(SERVER_PID).fetchone()[0])


def _keeps_statement_names(context: Context, connection: Any) -> bool:
    """Return whether the pooler passes the names of prepared statements to PostgreSQL unchanged.

    PgBouncer 1.21 and later can replace the names by its own (max_prepared_statements). Then it also prepares a
    statement again on a server connection that lacks it, so prepared statements work. All statements of this function
    run on one server connection, since the check runs in a transaction. The function removes the statement that it
    prepares.
    """
    name = f"outbox_doctor_{uuid4().hex}"
    connection.pgconn.prepare(name.encode(), b"SELECT 1")
    same_name = context.rows("SELECT 1 FROM pg_prepared_statements WHERE name = %s", name)
    if same_name:
        context.box.dialect.run(f"DEALLOCATE {name}")
    return bool(same_name)


def _shares_connections(context: Context) -> bool:
    """Return whether two client connections share a server connection, or one of them uses several."""
    database = context.box.database
    with closing(new_connection(database)) as one, closing(new_connection(database)) as other:
        seen = {_server_pid(one)}
        for _ in range(COMPARISONS):
            if _server_pid(other) in seen:
                return True
            seen.add(_server_pid(one))
        return len(seen) > 1
