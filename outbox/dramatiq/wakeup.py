"""Send a wake-up: one message that makes a worker drain the table, however many commits ask for it.

The emitting process sets a flag before it sends the message. While the flag is set, no other process sends one. The
delivery actor clears the flag before it claims. So a process that finds the flag set has committed before some worker
claims, and no commit falls between the two. If the process that set the flag dies before it has sent the message, the
flag expires after a second. A sweep ignores the flag, and so covers every wake-up that is lost.

The notifier calls `notify` here through the entry point `outbox.dispatch`; the scheduler calls `sweep` and `clean_up`.
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
from outbox.dramatiq.actor_names import CLEANUP, DELIVER
from outbox.dramatiq.broker import find_broker
from outbox.dramatiq.broker_kind import is_redis
from outbox.dramatiq.middleware import has_worker
from outbox.dramatiq.rabbitmq import is_rabbitmq, sender_for
from outbox.dramatiq.wakeup_flag import Flag, LocalFlag, MinimumInterval, RedisFlag
from outbox.errors import OutboxError

logger = logging.getLogger(__name__)


class NoWorkerReachable(OutboxError):
    """No broker connects this process to others, and no outbox worker runs in this process."""

    def __init__(self) -> None:
        super().__init__(
            "OUTBOX_REDIS_URL is not set, no broker is set, and no outbox worker runs in this process "
            "(if sweeps are enough, set OUTBOX_DISPATCH=off)"
        )


def send_wakeup_once(flag: Flag, send: Callable[[], None]) -> None:
    """Send the wake-up, unless one is on its way. The emitting process calls this after its commit."""
    if not flag.try_set():
        return
    try:
        send()
    except BaseException:
        with contextlib.suppress(Exception):
            flag.clear()
        raise


def clear_flag_then(flag: Flag, drain: Callable[[], object]) -> None:
    """Clear the flag, then drain: in the other order a commit between the two would find the flag set."""
    try:
        flag.clear()
    except Exception as error:
        logger.warning("Could not clear the wake-up flag: %s. It expires by itself after a second.", error)
    drain()


class NotifyWorker:
    """Called by the notifier after commits, when OUTBOX_DISPATCH is `dramatiq`. It declares no actors."""

    def __call__(self, box: Outbox) -> None:
        broker = find_broker(box.settings)
        if isinstance(broker, StubBroker) and not has_worker(broker):
            raise NoWorkerReachable
        send_wakeup(broker, box.settings.queue)

    def prepare(self, box: Outbox) -> None:
        """Import what sending needs. The first emit calls this: a process that is ending can import nothing."""
        find_broker(box.settings)


notify_worker = NotifyWorker()


def send_wakeup(broker: dramatiq.Broker, queue: str) -> None:
    """Send a wake-up on this broker, unless one is on its way."""
    send_wakeup_once(flag_for(broker, queue), lambda: _enqueue(broker, queue, DELIVER))


def sweep() -> None:
    """Send a sweep: a message that makes a worker drain the table, whether or not the flag is set."""
    _send_by_settings(DELIVER)


def clean_up() -> None:
    """Send the message that makes a worker delete what is older than the retention."""
    _send_by_settings(CLEANUP)


def _send_by_settings(actor_name: str) -> None:
    settings = loaded_settings()
    send(find_broker(settings), settings.queue, actor_name)


def send(broker: dramatiq.Broker, queue: str, actor_name: str) -> None:
    """Enqueue a message for one of our actors, unless enough are unanswered."""
    if flag_for(broker, queue).may_send():
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
        return MinimumInterval(lambda: sender_for(broker).waiting(queue))
    return MinimumInterval()
