"""Roll back a transaction that the call of a destination has left open.

Workers deliver outside any transaction, so a transaction that is open after a call was begun by the call. Outcomes that
are settled next would become part of it, and be lost with it. So it is rolled back, and its connection is closed. A
connection that the server has ended is closed, too: the calls for the next events would find it, and fail.

Tests may deliver inside a transaction of their own (`outbox/testing/test_transaction.py`): they replace this object.
"""

from __future__ import annotations

from outbox.storage.dialect import Dialect


class CallTransaction:
    """Watches the transaction of the calling thread around each call of a destination."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def begins(self) -> None:
        """Prepare for a destination that takes an event. A worker has no transaction open, so this does nothing."""

    def ended(self) -> bool:
        """Return whether the call has left a transaction open; if it has, the transaction is rolled back.

        If the connection was lost, discard it.
        """
        dialect = self._dialect
        if dialect.database.is_closed():
            return False
        left_open = dialect.in_transaction
        if left_open or dialect.is_connection_lost:
            dialect.discard_connection()
        return left_open

    def interrupted(self) -> None:
        """Discard the connection: a time limit or a shutdown may have been raised inside a transaction."""
        self._dialect.discard_connection()
