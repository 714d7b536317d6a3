"""The actors: each a thin call into the library.

No Dramatiq retries and no delays: whether and when to try again is written in the database. The time limit only ends
what neither a lease nor a handler has ended.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dramatiq
from dramatiq.actor import ActorDecorator

import outbox
from outbox import retention
from outbox.database import CONNECTION_ERRORS
from outbox.delivery import DRAIN_SECONDS
from outbox.dramatiq import wakeup
from outbox.dramatiq.broker import broker_in_use

logger = logging.getLogger("outbox")

# How long one clean-up may hold its thread before it hands over to the next.
CLEANUP_SECONDS = 10.0
# Before the user's actors (lower comes first): drains are few, and short.
DELIVER_PRIORITY, CLEANUP_PRIORITY = -10, 10


def _actor(name: str, priority: int) -> ActorDecorator:
    settings = outbox.loaded_settings()
    broker = broker_in_use()
    limit = (DRAIN_SECONDS + settings.max_run_seconds + settings.lease_seconds) * 1000
    wanted: dict[str, Any] = {"max_retries": 0, "time_limit": int(limit)}
    # An application's own broker may go without the middleware that knows an option.
    options = {option: value for option, value in wanted.items() if option in broker.actor_options}
    return dramatiq.actor(actor_name=name, queue_name=settings.queue, priority=priority, broker=broker, **options)


@_actor(wakeup.DELIVER, DELIVER_PRIORITY)
def deliver_outbox_events() -> None:
    """Deliver what is due."""
    box = outbox.current()
    flag = wakeup.flag_for(deliver_outbox_events.broker, box.settings.queue)
    with _database_may_be_down():
        wakeup.answer(flag, box.drain)


@_actor(wakeup.CLEANUP, CLEANUP_PRIORITY)
def cleanup_delivered_outbox_events() -> None:
    """Delete what ended longer ago than the retention, and forget what was received longer ago than that."""
    with _database_may_be_down():
        box = outbox.current()
        events = box.cleanup_delivered_events(seconds=CLEANUP_SECONDS)
        messages = box.inbox.cleanup(seconds=CLEANUP_SECONDS)
        retention.forget_records(box)
        if events["remaining"] or messages["remaining"]:
            wakeup.clean_up()


@contextmanager
def _database_may_be_down() -> Iterator[None]:
    """One line, and the next sweep tries again; as a failed message it would leave a traceback and a dead letter."""
    try:
        yield
    except CONNECTION_ERRORS as error:
        outbox.current().dialect.discard_connection()
        logger.warning("the database can't be used, the next sweep tries again: %s", str(error).strip())
