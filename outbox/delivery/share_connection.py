"""Get a database connection for the thread of a share.

Handlers use it: each share has a thread of its own, so Peewee gives it a connection of its own.
"""

from __future__ import annotations

import time
from datetime import timedelta

from playhouse.pool import PooledDatabase

from outbox.delivery.context import DeliveryContext
from outbox.destinations.handler import POOL_EXHAUSTED, POOL_EXHAUSTED_WAIT
from outbox.errors import Unavailable, as_sentence
from outbox.storage.connection_errors import CONNECTION_ERRORS, is_pool_exhausted

# How often a thread tries to get a connection, if the pool has none left or the database is unavailable.
CONNECT_AGAIN_SECONDS = 0.05
# How long the events wait if there is none after some seconds.
WAIT = timedelta(seconds=10)


class ShareConnection:
    """The connection of the thread that runs a share.

    A call may lose it: the server was restarted, or has ended the session because of what the handler did. All later
    calls would fail, too, with a lost connection or without a server. So after a call that has lost its connection, or
    got none, the next one begins only when the thread can connect again.
    """

    def __init__(self, context: DeliveryContext) -> None:
        self._context = context
        self._database = context.dialect.database
        # Whether a call has lost the connection, or got none: the next one has to wait for `reconnect`.
        self.must_reconnect = False

    def call_ended(self, error: BaseException | None) -> bool:
        """Return whether the call left its transaction open; remember whether it has lost its connection, or got none.

        `error` is what the call has raised.
        """
        database = self._database
        if database.is_closed():
            if error is not None and isinstance(error, CONNECTION_ERRORS):
                self.must_reconnect = True
            return False
        left_open = self._context.call_transaction.ended()
        if database.is_closed():
            self.must_reconnect = True
        return left_open

    def reconnect(self) -> Unavailable | None:
        """Replace a connection that an earlier call has lost; return None, or why no event can be delivered now."""
        reason = connect(self._context)
        self.must_reconnect = reason is not None
        if reason is None and self._database.autoconnect:
            self._database.close()  # handlers may call `connect` themselves, and did so before
        return reason

    def wait_after_exhausted_pool(self) -> bool:
        """Wait for a connection after a call could not get one; return whether this thread has one now.

        If this thread has a connection of the outbox's pool, the call used another pool, so waiting does not help.
        """
        database = self._database
        return isinstance(database, PooledDatabase) and database.is_closed() and connect(self._context) is None


def connect(context: DeliveryContext) -> Unavailable | None:
    """Wait a few seconds for a connection for this thread; return None, or why it has none."""
    ends_at = time.monotonic() + context.waits.connection_seconds
    while True:
        try:
            context.dialect.database.connect(reuse_if_open=True)
        except CONNECTION_ERRORS as error:
            if time.monotonic() >= ends_at or context.stopping.is_set():
                return _why(error)
            time.sleep(CONNECT_AGAIN_SECONDS)
        else:
            return None


def _why(error: Exception) -> Unavailable:
    if is_pool_exhausted(error):
        return Unavailable(POOL_EXHAUSTED, not_before=POOL_EXHAUSTED_WAIT)
    return Unavailable(f"not tried: no connection to the database: {as_sentence(error)}", not_before=WAIT)
