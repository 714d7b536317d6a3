"""Call a function after a commit: once for each transaction, however often `add` was called in it.

Peewee's list of `after_commit` callbacks holds the only strong reference to our callback. So our callback is deleted
once it has run, and also once a rollback has dropped it. While it exists, the transaction already has a callback, and a
further `add` only adds to its count.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from outbox.storage.dialect import Dialect

# What is added up: a count, or a list.
C = TypeVar("C", int, list[str])
Then = Callable[[Dialect, C], None]


class AfterCommit(Generic[C]):
    """Calls `then` after a transaction that committed, with the sum of the counts (or lists) that were added in it."""

    def __init__(self, then: Then[C]) -> None:
        self._then: Then[C] = then
        self._of_thread: _OfThread[C] = _OfThread()

    def add(self, dialect: Dialect, count: C) -> None:
        """Add to the count of this thread's transaction; without a transaction, call `then` at once.

        Raise ValueError inside `manual_commit`: Peewee reports no end of such a transaction.
        """
        transaction = dialect.database.top_transaction()
        waiting = self._of_thread.callback()
        # A callback that exists is not always waiting for a commit. One that a rollback has dropped exists as long as
        # the traceback of the exception that caused the rollback; one that was called exists while it runs.
        if waiting is not None and waiting.transaction is transaction and not waiting.called:
            waiting.count += count
            return
        callback = _Callback(self._then, dialect, transaction, count)
        self._of_thread.callback = weakref.ref(callback)
        dialect.database.after_commit(callback)


class _Callback(Generic[C]):
    __slots__ = ("__weakref__", "_dialect", "_then", "called", "count", "transaction")

    def __init__(self, then: Then[C], dialect: Dialect, transaction: Any, count: C) -> None:
        self._then: Then[C] = then
        self._dialect = dialect
        self.transaction = transaction
        self.count: C = count
        self.called = False

    def __call__(self) -> None:
        self.called = True
        self._then(self._dialect, self.count)


class _OfThread(threading.local, Generic[C]):
    """The last callback of each thread: a transaction belongs to one thread, as its connection does."""

    def __init__(self) -> None:
        self.callback: Callable[[], _Callback[C] | None] = lambda: None
