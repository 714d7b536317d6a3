"""Tell a database session that the server ended from a server that is gone.

A handler's transaction can be ended by the server while the server keeps running: by a timeout
(`idle_in_transaction_session_timeout`, `transaction_timeout`), by `pg_terminate_backend`, or by something in between
that drops idle connections. The next try of the same entry would take as long and end in the same way, so it is the
entry's failure and counts. The driver's error does not tell: psycopg often says only that the connection is closed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from outbox.storage.connection_errors import CONNECTION_ERRORS
from outbox.storage.dialect import Dialect

# idle_in_transaction_session_timeout and transaction_timeout.
TIMEOUTS = frozenset({"25P03", "25P04"})

STARTED = "SELECT pg_postmaster_start_time()"


class HandlerSession:
    """The database session that one call of a handler runs in."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._begun = False
        # What the handler let out, if its session was whole when it did.
        self._foreign: BaseException | None = None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Around the handler's call."""
        self._begun = True
        connection = self._dialect.database.connection()
        try:
            yield
        except BaseException as error:
            if not getattr(connection, "broken", False):
                self._foreign = error
            raise

    def broke(self, error: BaseException) -> bool:
        """Return whether the error tells that this session broke, inside the handler or at the end of its transaction.

        Before the handler began, the entry has nothing to do with it. And a handler may lose another database.
        """
        return self._begun and error is not self._foreign


class DatabaseServer:
    """The server of the inbox's database. It remembers when that server was started."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._started_at: object = None

    def ended(self, session: HandlerSession, error: BaseException) -> bool:
        """Return whether the server ended the session and kept running. After a restart it returns False."""
        if not session.broke(error) or self._dialect.name != "postgres":
            return False
        kept_running = self._kept_running()
        return kept_running or hit_timeout(error)

    def _kept_running(self) -> bool:
        """Return whether the server answers and was not restarted since the last call; the first call can't know."""
        before = self._started_at
        try:
            with self._dialect.connection():
                (self._started_at,) = self._dialect.run(STARTED).fetchone()
        except CONNECTION_ERRORS:
            return False
        return before == self._started_at


def hit_timeout(error: BaseException | None) -> bool:
    """Return whether a timeout ended the session. The error of the commit stands behind that of the rollback."""
    while error is not None:
        if getattr(error, "sqlstate", None) in TIMEOUTS:
            return True
        error = error.__context__
    return False
