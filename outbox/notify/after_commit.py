"""Call a function after a commit: once for each transaction, however often `add` was called in it.

Peewee's list of `after_commit` callbacks holds the only strong reference to our callback. So our callback is deleted
once it has run, and also once a rollback has dropped it. While it exists, the transaction already has a callback, and a
further `add` only adds to its count.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

from outbox.storage.dialect import Dialect

Then = Callable[[Dialect, int], None]


class AfterCommit:
    """Calls `then` after a transaction that committed, with the sum of the counts that were added in it."""

    def __init__(self, then: Then) -> None:
        self._then = then
        self._of_thread = _OfThread()

    def add(self, dialect: Dialect, count: int = 1) -> None:
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


class _Callback:
    __slots__ = ("__weakref__", "_dialect", "_then", "called", "count", "transaction")

    def __init__(self, then: Then, dialect: Dialect, transaction: Any, count: int) -> None:
        self._then = then
        self._dialect = dialect
        self.transaction = transaction
        self.count = count
        self.called = False

    def __call__(self) -> None:
        self.called = True
        self._then(self._dialect, self.count)


class _OfThread(threading.local):
    """The last callback of each thread: a transaction belongs to one thread, as its connection does."""

    def __init__(self) -> None:
        self.callback: Callable[[], _Callback | None] = lambda: None
