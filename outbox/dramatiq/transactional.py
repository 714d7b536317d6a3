"""Make an application's broker transactional: a plain `actor.send()` inside a transaction becomes a job.

`transactional` replaces three methods on the broker object itself, so the object keeps its class, its middleware and
its actors, whether they were declared before or are declared later:

- `enqueue`: inside an open transaction on the outbox's database, the message is stored. Otherwise it is sent at once.
- `emit_before`, `emit_after`: what the broker's middleware enqueues while it handles a signal is always sent at once.
  Dramatiq's retries, the next step of a pipeline and the callbacks of a group are enqueued in this way. A middleware
  that runs each message in a transaction may have it still open then, and may roll it back: the retry must not be
  rolled back with it.

The outbox's own messages are never stored (`enqueue_now.py`).

It also adds two middlewares that the inbox needs in the application's own workers: one knows the current message
(`current_message.py`), the other makes a skipped actor return None.
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
    - `databases`: the database of the outbox, as given to `outbox.configure`. Inside an open transaction on it, a
      message is stored, and enqueued if and only if the transaction commits. Elsewhere a message is sent at once.
    """
    named = [behind_proxy(each) for each in databases]
    _check_databases(named)
    known_brokers.add(broker)
    if isinstance(broker.enqueue, _TransactionalEnqueue):
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
    own = current().database
    for database in databases:
        if database is not own:
            raise SettingsError(
                f"{place_of(database)} is not the outbox's database ({place_of(own)}), or it is another Peewee object "
                "with a connection of its own. A message can be stored only in the transaction that the outbox's table "
                "is part of: give outbox.configure and outbox.transactional the same database object."
            )


class _TransactionalEnqueue:
    """`broker.enqueue` of a transactional broker."""

    def __init__(self, broker: dramatiq.Broker, enqueue_now: Enqueue, databases: Sequence[peewee.Database]) -> None:
        self._broker = broker
        self.enqueue_now = enqueue_now
        self.databases = databases

    def __call__(self, message: dramatiq.Message[Any], *, delay: int | None = None) -> dramatiq.Message[Any]:
        """Store the message if a transaction is open on the outbox's database; otherwise send it at once."""
        if is_handling_signal() or not self._is_in_transaction(box := current()):
            return self.enqueue_now(message, delay=delay)
        return store_message(box, self._broker, message, delay=delay, caller="actor.send")

    def _is_in_transaction(self, box: Outbox) -> bool:
        if any(database is box.database for database in self.databases):
            return box.dialect.in_transaction
        if any(database.in_transaction() for database in self.databases):
            raise SettingsError(
                "outbox.configure has been called with another database since outbox.transactional: the message can't "
                "be stored in the open transaction. Call outbox.transactional again, with the new database."
            )
        return False
