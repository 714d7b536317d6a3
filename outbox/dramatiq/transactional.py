"""Make an application's broker transactional: a plain `actor.send()` inside a transaction is stored as a job.

A worker enqueues the job after the commit. `transactional` changes the broker object itself, so the object keeps its
class, its middleware and its actors, whether they were declared before or are declared later:

- `enqueue` is replaced here. Inside an open transaction on the outbox's database it stores the message. Otherwise it
  sends the message immediately.
- `emit_before` and `emit_after`, through which a broker calls its middleware, are wrapped by `install_hooks`
  (`enqueue_now.py`). Messages that middleware enqueues are always sent immediately: Dramatiq's retries, the next step
  of a pipeline, the callbacks of a group. Some middleware runs each actor in a transaction, which may still be open
  when Dramatiq enqueues the retry. If the retry were stored in that transaction, a rollback would delete it.

Messages that the outbox itself sends (wake-ups, deliveries) are never stored (`enqueue_now.py`).

`transactional` also adds two middlewares that the inbox needs in the application's own workers: one knows the current
message (`current_message.py`), the other makes a skipped actor return None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import dramatiq
import peewee

from outbox.core import Outbox
from outbox.current_outbox import current, is_configured
from outbox.dramatiq import known_brokers
from outbox.dramatiq.broker import add_once
from outbox.dramatiq.current_message import add_current_message
from outbox.dramatiq.enqueue_now import install_hooks, is_handling_signal
from outbox.dramatiq.middleware import SkippedResults
from outbox.dramatiq.send import store_message
from outbox.errors import SettingsError
from outbox.storage.peewee_database import behind_proxy, place_of

B = TypeVar("B", bound=dramatiq.Broker)

Enqueue = Callable[..., dramatiq.Message[Any]]


def transactional(broker: B, *, databases: Sequence[peewee.Database]) -> B:
    """Make `enqueue`, and so `actor.send()`, of this broker transactional; return the same broker.

    - `broker`: the application's broker, of any kind. Actors that were declared on it before are included.
    - `databases`: the databases whose transactions count. Each must be the outbox's database, the object that was given
      to `outbox.configure`: a message can be stored only in its transactions. Inside an open transaction a message is
      stored, and enqueued if and only if the transaction commits. Outside it is sent immediately.
    """
    named = [behind_proxy(each) for each in databases]
    _check_databases(named)
    known_brokers.add(broker)  # so that a worker finds the broker of a stored job
    if isinstance(broker.enqueue, _TransactionalEnqueue):  # a second call
        broker.enqueue.databases = named
        return broker
    install_hooks(broker)
    add_current_message(broker)
    add_once(broker, SkippedResults())
    broker.enqueue = _TransactionalEnqueue(broker, broker.enqueue, named)  # type: ignore[method-assign]
    return broker


def _check_databases(databases: Sequence[peewee.Database]) -> None:
    if not databases:
        raise SettingsError("outbox.transactional needs the outbox's database: databases=[db].")
    if not is_configured():
        raise SettingsError("Call outbox.configure(database=db) before outbox.transactional(broker, databases=[db]).")
    own = current().application_database
    for database in databases:
        if database is not own:
            raise SettingsError(
                f"{place_of(database)} is not the outbox's database, which is {place_of(own)}. (If both are the same "
                "place, they are two Peewee objects, each with a connection of its own.) A message can be stored only "
                "in a transaction of the outbox's database: give outbox.configure and outbox.transactional the same "
                "database object."
            )


class _TransactionalEnqueue:
    """`broker.enqueue` of a transactional broker."""

    def __init__(self, broker: dramatiq.Broker, original: Enqueue, databases: Sequence[peewee.Database]) -> None:
        self._broker = broker
        # The method that this object replaces.
        self.original = original
        self.databases = databases

    def __call__(self, message: dramatiq.Message[Any], *, delay: int | None = None) -> dramatiq.Message[Any]:
        """Store the message if a transaction is open on the outbox's database; otherwise send it immediately."""
        if is_handling_signal() or not self._is_in_transaction(box := current()):
            return self.original(message, delay=delay)
        return store_message(box, self._broker, message, delay=delay, caller="actor.send")

    def _is_in_transaction(self, box: Outbox) -> bool:
        """Return whether a transaction is open.

        Raise SettingsError if it is one of a database that was the outbox's when `transactional` was called.
        """
        if any(database is box.application_database for database in self.databases):
            return box.emit_dialect.in_transaction
        if any(database.in_transaction() for database in self.databases):
            raise SettingsError(
                "outbox.configure has been called with another database since outbox.transactional: the message can't "
                "be stored in the open transaction. Call outbox.transactional again, with the new database."
            )
        return False
