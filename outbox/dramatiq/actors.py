"""The actors: each a thin call into the library.

No Dramatiq retries and no delays: whether and when to try again is written in the database. The time limit only ends
what neither a lease nor a handler has ended.

They are declared where a worker starts that is to deliver, and nowhere else: a Dramatiq worker consumes the queue of
every actor that is declared in its process.
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
from outbox.dramatiq.names import CLEANUP, DELIVER
from outbox.settings import Settings
from outbox.storage import retention
from outbox.storage.dialect import CONNECTION_ERRORS

logger = logging.getLogger("outbox")

# How long one clean-up may hold its thread before it hands over to the next.
CLEANUP_SECONDS = 10.0
# Before the user's actors (lower comes first): drains are few, and short.
DELIVER_PRIORITY, CLEANUP_PRIORITY = -10, 10


def declare_actors(broker: dramatiq.Broker, settings: Settings) -> None:
    """Declare our actors on the broker, on the settings' queue; once, however often it is called."""

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
    # An application's own broker may go without the middleware that knows an option.
    options = {option: value for option, value in wanted.items() if option in broker.actor_options}
    declare = dramatiq.actor(actor_name=name, queue_name=settings.queue, priority=priority, broker=broker, **options)
    declare(function)


def deliver(broker: dramatiq.Broker) -> None:
    """Deliver what is due."""
    box = current()
    look = box.drain if _is_worker(box) else _do_nothing
    with _database_may_be_down():
        wakeup.answer(wakeup.flag_for(broker, box.settings.queue), look)


def clean_up() -> None:
    """Delete what ended longer ago than the retention, and forget what was received longer ago than that."""
    box = current()
    if not _is_worker(box):
        return
    with _database_may_be_down():
        events = box.cleanup_delivered_events(seconds=CLEANUP_SECONDS)
        messages = box.inbox.cleanup(seconds=CLEANUP_SECONDS)
        retention.forget_records(box)
        if events["remaining"] or messages["remaining"]:
            wakeup.clean_up()


def _is_worker(box: Outbox) -> bool:
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
    """One line, and the next sweep tries again; as a failed message it would leave a traceback and a dead letter."""
    try:
        yield
    except CONNECTION_ERRORS as error:
        current().dialect.discard_connection()
        logger.warning("the database can't be used, the next sweep tries again: %s", str(error).strip())
