"""The inbox: a message has its effect once, however often it is delivered.

    with outbox.inbox.claim(command_id, "start-workflow") as first:
        if first:
            ...

`claim` first inserts a row that says that this handler has processed this message, in the same transaction as the
handler's own writes. If two calls run at the same time, the second waits for the commit of the first, finds the row and
skips the message. A handler that raises, or a process that dies, leaves neither its effect nor the row. No SELECT runs
before the INSERT, so no other call can come between them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import peewee

from outbox.errors import SettingsError, Signal, TransactionRequired
from outbox.inbox.message_id import Key, check_id
from outbox.inbox.once_decorator import Decorator, make_once
from outbox.storage import retention, schema
from outbox.storage.dialect import Dialect
from outbox.telemetry.counters import Counters
from outbox.text import visible

logger = logging.getLogger(__name__)


class Inbox:
    """Records which handler has processed which message, in the database that holds the handlers' own tables."""

    def __init__(self, dialect: Dialect, counters: Counters, retention_hours: float, *, is_apart: bool = False) -> None:
        """`is_apart`: the dialect is not on the database of the application's transactions, so nothing can be claimed.

        That is so beside an asynchronous database, unless the application passes an `inbox_database`.
        """
        self.dialect = dialect
        self.database = dialect.database
        self.counters = counters
        self._retention_hours = retention_hours
        self._is_apart = is_apart

    @contextmanager
    def claim(self, message_id: object, handler_name: str) -> Iterator[bool]:
        """Run the block in a transaction; yield True if the handler has not processed the message before.

        If the caller has a transaction open, the block is a savepoint in it. The message then counts as processed once
        that transaction commits.
        """
        key = (check_id("message_id", message_id), check_id("handler_name", handler_name))
        if self._is_apart:
            raise SettingsError(
                "The inbox writes its row in the transaction of the handler, with a blocking connection, and the "
                "outbox's database is asynchronous. Pass outbox.configure(…, inbox_database=…): the blocking Peewee "
                "database that the handler itself uses."
            )
        version: str | None = None
        raised: BaseException | None = None
        nested = False
        try:
            with self.dialect.connection():
                nested = self.dialect.in_transaction
                with self.dialect.atomic():
                    version = self._insert(key)
                    if version is None:
                        self.counters.add(skipped=1)
                        logger.debug("Skipped: %s has processed message %s before.", handler_name, message_id)
                    try:
                        yield version is not None
                    except BaseException as error:
                        raised = error
                        raise
                    self._check_can_commit(handler_name)
        except BaseException as error:
            rolled_back = nested and error is raised  # no other error: the rollback to the savepoint has succeeded
            if raised is None or version is None or rolled_back:
                raise
            if self._delete_committed_row(key, version, nested=nested):
                _raise_partly_committed(key, raised)
            raise

    def once(self, handler_name: str, *, key: Key | None = None) -> Decorator:
        """Return a decorator that calls the function once for each message, in a transaction.

        Later calls for the same message return SKIPPED. The message is the first argument: an event, an envelope, a
        Dramatiq message, or any object with an id. If the id is elsewhere, pass `key`: the name of an argument, the
        name of a field of the first argument, or a function of all arguments that returns the id.
        """
        return make_once(self.claim, handler_name, key)

    def create_tables(self) -> None:
        """Create only the inbox's table, in a database without an outbox. Many processes may call this at once."""
        schema.create_inbox(self.dialect)

    def cleanup(self, retention_hours: float | None = None, *, seconds: float | None = None) -> dict[str, int]:
        """Delete the rows that are older than the retention. Stop after `seconds`, if given.

        Return {"deleted": …, "remaining": …}. `remaining` counts the rows that are still to be deleted, up to a cap.
        """
        hours = self._retention_hours if retention_hours is None else retention_hours
        return retention.cleanup_inbox(self.dialect, hours, seconds=seconds)

    def _insert(self, key: tuple[str, str]) -> str | None:
        """Insert the row and return its version, or None if the handler has processed the message before."""
        with schema.explaining_missing_inbox(self.dialect):
            row = self.database.execute_sql(self.dialect.statements.inbox_insert, key).fetchone()
        return None if row is None else str(row[0])

    def _check_can_commit(self, handler_name: str) -> None:
        if not self.dialect.can_commit:
            raise TransactionRequired(
                f"The transaction of {handler_name!r} can't be committed: an SQL statement in it failed and the error "
                "was caught, or the function has ended the transaction. Don't catch the error, or put "
                "`with db.atomic():` around the statements that may fail."
            )

    def _delete_committed_row(self, key: tuple[str, str], version: str, *, nested: bool) -> bool:
        """Delete the row if it still exists after the rollback; return whether it existed.

        It is still there if the handler itself committed before it raised. If the row stayed, the message would be
        skipped the next time, and the rest of the handler's effect would be lost. If a transaction is open now, it was
        begun after that commit, so rolling it back undoes only what the handler wrote since then.
        """
        try:
            with self.dialect.connection():
                if self.dialect.in_transaction:
                    self.database.rollback()
                parameters = (*key, version)
                deleted = self.database.execute_sql(self.dialect.statements.inbox_take_back, parameters).fetchone()
                if nested:
                    self.database.begin()  # because the caller is going to end its transaction
        except peewee.PeeweeException as error:
            logger.debug("Could not delete the row of %s from the inbox, if there is one: %s", key, error)
            return False
        return deleted is not None


def _raise_partly_committed(key: tuple[str, str], raised: BaseException) -> NoReturn:
    """Log and raise an error about a handler that called commit itself and then raised.

    A Signal (such as RetryLater) is raised unchanged, because it decides what happens next. So is an exception that is
    not an Exception, such as an interrupt or a time limit.
    """
    message_id, handler_name = key
    text = (
        f"{handler_name!r} called commit itself and then raised {type(raised).__name__} for message {message_id}: "
        "what it wrote before that commit can't be undone. Its row was removed from the inbox, so the "
        "message is not skipped when it is delivered again, and that part of the effect will then happen twice. "
        "Remove the commit from the function: the inbox commits when the function returns."
    )
    logger.error("%s", visible(text))
    if isinstance(raised, Signal) or not isinstance(raised, Exception):
        raise raised
    raise TransactionRequired(text) from raised
