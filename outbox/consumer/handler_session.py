"""After a lost connection, decide whether only the handler's session ended or the database server is unavailable.

A handler's session can end while the server keeps running: because of a timeout (`idle_in_transaction_session_timeout`,
`transaction_timeout`), because of `pg_terminate_backend`, or because a firewall drops an idle connection. The next
attempt would take as long and end in the same way. So this is a failure of the entry, and the delivery counts.

The driver's error does not say which of the two happened; psycopg often says only that the connection is closed. So the
consumer asks the server, over another connection, when it was started.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from outbox.storage.connection_errors import CONNECTION_ERRORS
from outbox.storage.dialect import Dialect

# The SQLSTATE codes of idle_in_transaction_session_timeout and transaction_timeout.
TIMEOUTS = frozenset({"25P03", "25P04"})

SERVER_STARTED_AT = "SELECT pg_postmaster_start_time()"


class HandlerSession:
    """The database session in which one handler is called."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._begun = False
        # An exception that the handler raised while this session was intact, so the session is not its cause.
        self._unrelated: BaseException | None = None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the call of the handler inside the block: remember an exception that leaves the session intact."""
        self._begun = True
        connection = self._dialect.database.connection()
        try:
            yield
        except BaseException as error:
            if not getattr(connection, "broken", False):
                self._unrelated = error
            raise

    def broke_with(self, error: BaseException) -> bool:
        """Return whether this session broke, in the handler or at the end of its transaction.

        Return False if the handler was not called yet, because then the entry is not the cause; and if the session was
        intact, because then the error is about another database that the handler uses.
        """
        return self._begun and error is not self._unrelated


class DatabaseServer:
    """The PostgreSQL server of the inbox's database. The object remembers when the server was started."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._started_at: object = None

    def ended(self, session: HandlerSession, error: BaseException) -> bool:
        """Return whether the session ended but the server kept running; False if it restarted or is unavailable."""
        if not session.broke_with(error) or self._dialect.name != "postgres":
            return False
        kept_running = self._kept_running()  # called in any case, because it remembers the start time
        return kept_running or hit_timeout(error)

    def _kept_running(self) -> bool:
        """Return whether the server responds and has not restarted since the last call; False for the first call."""
        before = self._started_at
        try:
            with self._dialect.connection():
                (self._started_at,) = self._dialect.run(SERVER_STARTED_AT).fetchone()
        except CONNECTION_ERRORS:
            return False
        return before == self._started_at


def hit_timeout(error: BaseException | None) -> bool:
    """Return whether a timeout ended the session. If the rollback failed too, the timeout is in its __context__."""
    while error is not None:
        if getattr(error, "sqlstate", None) in TIMEOUTS:
            return True
        error = error.__context__
    return False
