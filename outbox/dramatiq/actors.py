"""The two Dramatiq actors: one delivers what is due, the other deletes what is old.

They use neither Dramatiq's retries nor its delays: whether and when to try again is written in the database. The time
limit only ends a call that the lease keeper has not ended.

Only a process that starts as an outbox worker declares them: a Dramatiq worker consumes the queue of every actor that
is declared in its process, so declaring them elsewhere would make that process take deliveries.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import dramatiq

from outbox.core import Outbox
from outbox.current_outbox import current
from outbox.delivery.deliver import DRAIN_SECONDS
from outbox.dramatiq import wakeup
from outbox.dramatiq.actor_names import CLEANUP, DELIVER
from outbox.settings import Settings
from outbox.storage.connection_errors import CONNECTION_ERRORS

logger = logging.getLogger(__name__)

# How long one clean-up may run before it enqueues another and ends.
CLEANUP_SECONDS = 10.0
# Lower comes first: deliveries run before the user's actors, since they are few and short, and clean-ups after them.
DELIVER_PRIORITY, CLEANUP_PRIORITY = -10, 10


def declare_actors(broker: dramatiq.Broker, settings: Settings) -> None:
    """Declare our actors on the broker, for the settings' queue. A second call does nothing."""

    def deliver_outbox_events() -> None:
        deliver(broker)

    def cleanup_delivered_outbox_events() -> None:
        clean_up()

    _declare(broker, settings, DELIVER, DELIVER_PRIORITY, deliver_outbox_events)
    _declare(broker, settings, CLEANUP, CLEANUP_PRIORITY, cleanup_delivered_outbox_events)


def _declare(
    broker: dramatiq.Broker, settings: Settings, name: str, priority: int, function: Callable[[], None]
) -> None:
    declared = broker.actors.get(name)
    if declared is not None and declared.queue_name == settings.queue:
        return
    limit = (DRAIN_SECONDS + settings.max_run_seconds + settings.lease_seconds) * 1000
    wanted: dict[str, Any] = {"max_retries": 0, "time_limit": int(limit)}
    # Dramatiq refuses an option that none of the broker's middleware knows; an application's broker may lack some.
    options = {option: value for option, value in wanted.items() if option in broker.actor_options}
    declare = dramatiq.actor(actor_name=name, queue_name=settings.queue, priority=priority, broker=broker, **options)
    declare(function)


def deliver(broker: dramatiq.Broker) -> None:
    """Clear the wake-up flag and deliver what is due; deliver nothing in a process that is no outbox worker."""
    box = current()
    drain = box.drain if _is_worker(box) else _do_nothing
    with _database_may_be_down():
        wakeup.clear_flag_then(wakeup.flag_for(broker, box.settings.queue), drain)


def clean_up() -> None:
    """Delete events, inbox rows and operators' records that are older than their retention."""
    box = current()
    if not _is_worker(box):
        return
    with _database_may_be_down():
        events = box.cleanup_delivered_events(seconds=CLEANUP_SECONDS)
        messages = box.inbox.cleanup(seconds=CLEANUP_SECONDS)
        box.delete_old_records()
        if events["remaining"] or messages["remaining"]:
            wakeup.clean_up()


def _is_worker(box: Outbox) -> bool:
    """Return whether this process was started to deliver events; warn once if it was not."""
    if not box.is_worker:
        box.warn_once(
            "This process took a message of the outbox, but was not started to deliver events, so it drops the "
            "message; the next sweep asks an outbox worker. Don't import `jobs` in a worker that is running already."
        )
    return box.is_worker


def _do_nothing() -> None:
    pass


@contextmanager
def _database_may_be_down() -> Iterator[None]:
    """Log a lost database connection in one line. A failed message would leave a traceback and a dead letter."""
    try:
        yield
    except CONNECTION_ERRORS as error:
        current().dialect.discard_connection()
        logger.warning("Could not use the database: %s. The next sweep tries again.", str(error).strip())
