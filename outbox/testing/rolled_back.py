"""Run a test in a transaction that is rolled back at its end.

Deliveries inside the test must not end this transaction. Each call of a handler gets a savepoint of its own, so that a
statement that fails on PostgreSQL does not abort the rest of the test.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from outbox.delivery.call_transaction import CallTransaction
from outbox.storage.dialect import Dialect
from outbox.storage.peewee_database import is_private_to_a_thread
from outbox.testing.errors import TransactionEnded


@contextmanager
def rolled_back(database: Any) -> Iterator[None]:
    """Run the block in a transaction, and roll it back; inside the caller's transaction, leave that to the caller."""
    with kept_open(database):
        if database.in_transaction():
            yield
            return
        with database.atomic() as transaction:
            try:
                yield
            finally:
                transaction.rollback()


@contextmanager
def kept_open(database: Any) -> Iterator[None]:
    """Keep the connection open inside the block: code that runs `with db:` would otherwise close it at its end.

    Peewee closes the connection when the outermost of such blocks ends. Here that is ours, which does not close a
    connection that was open before: that would delete a database in memory.
    """
    was_closed = database.is_closed()
    context = database.connection_context()
    context.__enter__()
    try:
        yield
    finally:
        if context in database._state.ctx:
            database._state.ctx.remove(context)
        if was_closed and not is_private_to_a_thread(database) and not database.is_closed():
            database.close()


class InsideTestTransaction(CallTransaction):
    """Gives each call of a destination a savepoint in the transaction that is open."""

    def __init__(self, dialect: Dialect) -> None:
        super().__init__(dialect)
        self._savepoint: Any = None
        self._depth = 0

    def begins(self) -> None:
        if self._savepoint is None:  # otherwise the destination has taken another event before: one savepoint is enough
            self._depth = self._dialect.database.transaction_depth()
            self._savepoint = self._dialect.database.savepoint()
            self._savepoint.__enter__()

    def ended(self) -> bool:
        """End the savepoint; return whether the call has left a transaction of its own open."""
        savepoint, self._savepoint = self._savepoint, None
        if savepoint is None:
            return False
        if not self._dialect.in_transaction:
            raise TransactionEnded
        left_open = self._close_what_was_left_open()
        if left_open or not self._dialect.can_commit:
            savepoint.rollback(begin=False)
        else:
            savepoint.commit(begin=False)
        return left_open

    def interrupted(self) -> None:
        """Go back to where the call began: the connection belongs to the test."""
        savepoint, self._savepoint = self._savepoint, None
        if savepoint is not None and self._dialect.in_transaction:
            self._close_what_was_left_open()
            savepoint.rollback(begin=False)

    def _close_what_was_left_open(self) -> bool:
        database = self._dialect.database
        left_open = database.transaction_depth() > self._depth
        while database.transaction_depth() > self._depth:
            database.pop_transaction()
        return left_open
