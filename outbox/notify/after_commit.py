"""Something to do after a commit: once for a transaction, however often it is asked for.

Peewee's list holds the only reference to the callback. So it is gone once it has run, and also once a rollback has
dropped it: as long as it is there, the transaction has one, and asking again only adds to its count.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

from outbox.storage.dialect import Dialect

Then = Callable[[Dialect, int], None]


class AfterCommit:
    """Calls `then` with what was added in the transaction."""

    def __init__(self, then: Then) -> None:
        self._then = then
        self._here = _Here()

    def add(self, dialect: Dialect, count: int = 1) -> None:
        """At once if there is no transaction; raises ValueError inside `manual_commit`, whose end nobody hears of."""
        transaction = dialect.database.top_transaction()
        waiting = self._here.waiting()
        # (A callback that was dropped may still be there if somebody keeps the exception that it was dropped for.)
        if waiting is not None and waiting.transaction is transaction and not waiting.called:
            waiting.count += count
            return
        callback = _Callback(self._then, dialect, transaction, count)
        self._here.waiting = weakref.ref(callback)
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


class _Here(threading.local):
    """A transaction is a thread's own, as its connection is."""

    def __init__(self) -> None:
        self.waiting: Callable[[], _Callback | None] = lambda: None
