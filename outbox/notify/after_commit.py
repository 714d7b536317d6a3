"""Call a function after a commit: once for each transaction, however often `add` was called in it.

Peewee keeps a list of callbacks for each connection: that of a thread, or, with an asynchronous database, that of a
task. It empties the list after a commit, before it calls them, and after a rollback. So while our callback is in the
list, the transaction already has one, and a further `add` only adds to its count.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import peewee

from outbox.storage.dialect import Dialect

# What is added up: a count, or a list.
C = TypeVar("C", int, list[str])
Then = Callable[[Dialect, C], None]


class AfterCommit(Generic[C]):
    """Calls `then` after a transaction that committed, with the sum of the counts (or lists) that were added in it."""

    def __init__(self, then: Then[C]) -> None:
        self._then: Then[C] = then

    def add(self, dialect: Dialect, count: C) -> None:
        """Add to the count of the transaction of this thread or task; without a transaction, call `then` at once.

        Raise ValueError inside `manual_commit`: Peewee reports no end of such a transaction.
        """
        database: Any = dialect.database
        transaction = database.top_transaction()
        if transaction is not None:
            for waiting in database._state.commit_callbacks:
                # The callback of a transaction whose connection was lost stays in the list, so the transaction counts.
                if type(waiting) is _Callback and waiting.owner is self and waiting.transaction is transaction:
                    waiting.count += count
                    return
        # Not `database.after_commit`: that of playhouse.pwasyncio first calls asyncio.iscoroutinefunction, which Python
        # 3.14 deprecates. Where warnings are errors, every emit would fail after its INSERT.
        peewee.Database.after_commit(database, _Callback(self, self._then, dialect, transaction, count))


class _Callback(Generic[C]):
    __slots__ = ("_dialect", "_then", "count", "owner", "transaction")

    def __init__(self, owner: AfterCommit[C], then: Then[C], dialect: Dialect, transaction: Any, count: C) -> None:
        self.owner: AfterCommit[C] = owner
        self._then: Then[C] = then
        self._dialect = dialect
        self.transaction = transaction
        self.count: C = count

    def __call__(self) -> None:
        self._then(self._dialect, self.count)
