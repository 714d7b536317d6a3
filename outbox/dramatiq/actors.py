"""The outbox's two Dramatiq actors: one delivers the events that are due, the other deletes old events and records.

The actors use neither Dramatiq's retries nor its delays, because the database stores whether and when an event is tried
again. Dramatiq's time limit is the last resort: it ends a call that the lease keeper thread did not end.

Only an outbox worker declares the actors. A Dramatiq worker consumes the queue of every actor that is declared in its
process, so any other process that declared them would also receive deliveries.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import dramatiq

from outbox.core import Outbox
from outbox.current_outbox import current, using
from outbox.delivery.deliver import DRAIN_SECONDS
from outbox.dramatiq import wakeup
from outbox.dramatiq.actor_names import CLEANUP, DELIVER, actor_of
from outbox.errors import as_sentence
from outbox.settings import Settings
from outbox.storage.connection_errors import CONNECTION_ERRORS
from outbox.storage.private_connection import can_be_private, outside_transaction

logger = logging.getLogger(__name__)

# A clean-up ends after this time. If old rows are left then, it enqueues another clean-up.
CLEANUP_SECONDS = 10.0
# A lower number runs first. Deliveries are few and short, so they run before the application's actors; clean-ups run
# after them.
DELIVER_PRIORITY, CLEANUP_PRIORITY = -10, 10


def declare_actors(broker: dramatiq.Broker, settings: Settings, outbox: str | None = None) -> None:
    """Declare the outbox's actors on the broker, with the queue of the settings. A second call does nothing.

    `outbox` is the name of the outbox; None is the default one.
    """

    def deliver_outbox_events() -> None:
        with using(outbox):
            deliver(broker)

    def cleanup_delivered_outbox_events() -> None:
        with using(outbox):
            clean_up()

    _declare(broker, settings, actor_of(DELIVER, outbox), DELIVER_PRIORITY, deliver_outbox_events)
    _declare(broker, settings, actor_of(CLEANUP, outbox), CLEANUP_PRIORITY, cleanup_delivered_outbox_events)


def _declare(
    broker: dramatiq.Broker, settings: Settings, name: str, priority: int, function: Callable[[], None]
) -> None:
    declared = broker.actors.get(name)
    if declared is not None and declared.queue_name == settings.queue:
        return
    limit = (DRAIN_SECONDS + settings.max_run_seconds + settings.lease_seconds) * 1000
    wanted: dict[str, Any] = {"max_retries": 0, "time_limit": int(limit)}
    # Dramatiq raises for an option that no middleware of the broker supports. An application's broker may lack the
    # middleware for retries or for time limits.
    options = {option: value for option, value in wanted.items() if option in broker.actor_options}
    declare = dramatiq.actor(actor_name=name, queue_name=settings.queue, priority=priority, broker=broker, **options)
    declare(function)


def deliver(broker: dramatiq.Broker) -> None:
    """Clear the wake-up flag, then deliver the events that are due.

    A process that is not an outbox worker clears the flag and delivers nothing.
    """
    box = current()
    drain = box.drain if _is_worker(box) else _do_nothing
    with _outside_transactions(box), _log_connection_errors():
        wakeup.clear_flag_then(wakeup.flag_for(broker, box.settings.queue), drain)


def clean_up() -> None:
    """Delete events, inbox rows, and the records of `Outbox.delete_old_records` after their retention."""
    box = current()
    if not _is_worker(box):
        return
    with _outside_transactions(box), _log_connection_errors():
        events = box.cleanup_delivered_events(seconds=CLEANUP_SECONDS)
        messages = box.inbox.cleanup(seconds=CLEANUP_SECONDS)
        box.delete_old_records()
        if events["remaining"] or messages["remaining"]:
            wakeup.send_to(box, CLEANUP) if box.name is not None else wakeup.send_clean_up()


def _is_worker(box: Outbox) -> bool:
    """Return whether this process was started to deliver events; warn once if it was not."""
    if not box.is_worker:
        box.warn_once(
            "This process received a message for outbox workers, but it is not an outbox worker. It drops the "
            "message; the next sweep notifies an outbox worker. Don't import `jobs` in a worker that is already "
            "running."
        )
    return box.is_worker


def _do_nothing() -> None:
    pass


@contextmanager
def _outside_transactions(box: Outbox) -> Iterator[None]:
    """Set aside a transaction that a middleware of the application has opened for this message, as for any other."""
    database = box.database
    if (database.in_transaction() or box.dialect.in_transaction) and can_be_private(database):
        with outside_transaction(database):
            yield
    else:
        yield


@contextmanager
def _log_connection_errors() -> Iterator[None]:
    """Catch a lost database connection, and log it in one line.

    Otherwise the message would fail: Dramatiq would log a traceback, and keep the message as a dead letter.
    """
    try:
        yield
    except CONNECTION_ERRORS as error:
        current().dialect.discard_connection()
        logger.warning("Could not use the database: %s The next sweep tries again.", as_sentence(error))
