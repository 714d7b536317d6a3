"""Waking a worker: one message, however many commits ask for it.

Before a message is sent a flag goes up, and while it is up nobody else sends one. The actor takes it down before it
looks at the table. So whoever finds the flag up has committed before somebody looks: no commit falls between the two.
The flag comes down by itself after a second, should its owner have died before it could send; and a sweep, which
ignores it, covers whatever else is lost.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import dramatiq
from dramatiq.brokers.stub import StubBroker

from outbox.core import Outbox
from outbox.current_outbox import loaded_settings
from outbox.dramatiq.broker import broker_in_use, is_redis
from outbox.dramatiq.flag import Flag, Interval, LocalFlag, RedisFlag
from outbox.dramatiq.middleware import has_worker
from outbox.dramatiq.names import CLEANUP, DELIVER
from outbox.dramatiq.rabbitmq import is_rabbitmq, sender_for
from outbox.errors import OutboxError

logger = logging.getLogger("outbox")


class NobodyHere(OutboxError):
    """There is no broker between processes, and this one has no worker."""

    def __init__(self) -> None:
        super().__init__(
            "OUTBOX_REDIS_URL is not set, no broker is, and no outbox worker runs in this process "
            "(if sweeps are enough, OUTBOX_DISPATCH=off says so)"
        )


def send_wakeup_once(flag: Flag, send: Callable[[], None]) -> None:
    """The emitter's side, after its commit."""
    if not flag.put_up():
        return
    try:
        send()
    except BaseException:
        with contextlib.suppress(Exception):
            flag.take_down()
        raise


def answer(flag: Flag, look: Callable[[], object]) -> None:
    """The worker's side: the flag comes down before the look, never after."""
    try:
        flag.take_down()
    except Exception as error:
        logger.warning("the wake-up flag could not be taken down, it will expire: %s", error)
    look()


class NotifyWorker:
    """What the notifier calls after commits when OUTBOX_DISPATCH is `dramatiq`. It declares nothing."""

    def __call__(self, box: Outbox) -> None:
        broker = broker_in_use(box.settings)
        if isinstance(broker, StubBroker) and not has_worker(broker):
            raise NobodyHere
        send_wakeup(broker, box.settings.queue)

    def prepare(self, box: Outbox) -> None:
        """Import what it takes; called by the first emit. Nothing can be imported once the process is ending."""
        broker_in_use(box.settings)


notify_worker = NotifyWorker()
ring = notify_worker  # for environments that were installed before the entry point was renamed


def send_wakeup(broker: dramatiq.Broker, queue: str) -> None:
    """Have a worker look at the table, unless one is about to."""
    send_wakeup_once(flag_for(broker, queue), lambda: _enqueue(broker, queue, DELIVER))


def sweep() -> None:
    """Have a worker look at the table, flag or no flag."""
    _send_by_settings(DELIVER)


def clean_up() -> None:
    """Have a worker delete what is old."""
    _send_by_settings(CLEANUP)


def _send_by_settings(actor_name: str) -> None:
    settings = loaded_settings()
    send(broker_in_use(settings), settings.queue, actor_name)


def send(broker: dramatiq.Broker, queue: str, actor_name: str) -> None:
    """Enqueue a message for one of our actors, unless enough are unanswered."""
    if flag_for(broker, queue).admit():
        _enqueue(broker, queue, actor_name)


def _enqueue(broker: dramatiq.Broker, queue: str, actor_name: str) -> None:
    message: dramatiq.Message[Any] = dramatiq.Message(
        queue_name=queue, actor_name=actor_name, args=(), kwargs={}, options={}
    )
    if is_rabbitmq(broker):
        sender_for(broker).enqueue(message)
    else:
        broker.enqueue(message)


_flags: WeakKeyDictionary[Any, dict[str, Flag]] = WeakKeyDictionary()


def flag_for(broker: dramatiq.Broker, queue: str) -> Flag:
    """Return the flag of a broker's queue."""
    flags = _flags.setdefault(broker, {})
    if queue not in flags:
        flags[queue] = _make_flag(broker, queue)
    return flags[queue]


def _make_flag(broker: Any, queue: str) -> Flag:
    if is_redis(broker):
        return RedisFlag(broker.client, f"{broker.namespace}:{queue}")
    if isinstance(broker, StubBroker):
        return LocalFlag(lambda: broker.queues[queue].qsize() if queue in broker.queues else 0)
    if is_rabbitmq(broker):
        return Interval(lambda: sender_for(broker).waiting(queue))
    return Interval()
