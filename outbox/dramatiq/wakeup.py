"""Send wake-ups, sweeps and clean-ups to the outbox's actors.

A wake-up is a message that makes a worker drain the table, that is, deliver all events that are due. Many commits share
one wake-up: the emitting process sets a flag before it sends the message, and while the flag is set, no process sends
another. The delivery actor clears the flag before it claims. So if a process commits and then finds the flag set, some
worker will clear the flag and claim after that commit. If the process that set the flag dies before it has sent the
message, the flag expires after a second.

A sweep is the same message, sent by the scheduler whether or not the flag is set. It makes up for lost wake-ups. A
clean-up is the message that makes a worker delete old events.

The notifier calls `notify_worker`, which it finds through the entry point `outbox.dispatch`. The scheduler calls
`send_sweep` and `send_clean_up`.
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
from outbox.dramatiq.actor_names import CLEANUP, DELIVER, actor_of
from outbox.dramatiq.broker import find_broker
from outbox.dramatiq.broker_kind import is_redis
from outbox.dramatiq.enqueue_now import enqueue_now
from outbox.dramatiq.in_process_broker import InProcessBroker
from outbox.dramatiq.middleware import has_worker
from outbox.dramatiq.rabbitmq import is_rabbitmq, sender_for
from outbox.dramatiq.wakeup_flag import Flag, LocalFlag, MinimumInterval, RedisFlag
from outbox.errors import OutboxError, as_sentence

logger = logging.getLogger(__name__)


class NoWorkerReachable(OutboxError):
    """No broker connects this process to others, and no outbox worker runs in this process."""

    def __init__(self, broker: StubBroker) -> None:
        if isinstance(broker, InProcessBroker):
            reason = "OUTBOX_REDIS_URL is not set, no broker is set, and no outbox worker runs in this process"
        else:
            reason = (
                f"the broker that is set is a {type(broker).__name__}, which reaches only this process, and no outbox "
                "worker runs in it"
            )
        super().__init__(f"{reason} (if sweeps are enough, or in tests, set OUTBOX_DISPATCH=off)")


def send_wakeup_once(flag: Flag, send: Callable[[], None]) -> None:
    """Send a wake-up, unless the flag is set. The emitting process calls this after its commit."""
    if not flag.try_set():
        return
    try:
        send()
    except BaseException:
        with contextlib.suppress(Exception):
            flag.clear()
        raise


def clear_flag_then(flag: Flag, drain: Callable[[], object]) -> None:
    """Clear the flag, then drain.

    In the other order, a process that commits between the two would find the flag set, and send no wake-up.
    """
    try:
        flag.clear()
    except Exception as error:
        logger.warning("Could not clear the wake-up flag: %s It expires after a second.", as_sentence(error))
    drain()


class NotifyWorker:
    """Sends wake-ups. The notifier calls it after commits, if OUTBOX_DISPATCH is `dramatiq`.

    It declares no actors: a process that only emits must not consume the outbox's queue.
    """

    def __call__(self, box: Outbox) -> None:
        """Send a wake-up, unless one is on its way. Raise NoWorkerReachable if no worker could receive it."""
        broker = find_broker(box.settings)
        if isinstance(broker, StubBroker) and not has_worker(broker, box.name):
            raise NoWorkerReachable(broker)
        send_wakeup(broker, box.settings.queue, box.name)

    def prepare(self, box: Outbox) -> None:
        """Create the broker, which imports all that sending needs.

        The first emit calls this. Later may be too late, because a process that is ending can't import modules.
        """
        find_broker(box.settings)


notify_worker = NotifyWorker()


def send_wakeup(broker: dramatiq.Broker, queue: str, outbox: str | None = None) -> None:
    """Send a wake-up through this broker, unless one is on its way. It names the outbox; None is the default one."""
    send_wakeup_once(flag_for(broker, queue), lambda: _enqueue(broker, queue, actor_of(DELIVER, outbox)))


def send_sweep() -> None:
    """Send a sweep: it makes a worker drain the table."""
    _send_to_actor(DELIVER)


def send_clean_up() -> None:
    """Send a clean-up: it makes a worker delete what is older than the retention."""
    _send_to_actor(CLEANUP)


def send_to(box: Outbox, actor_name: str) -> None:
    """Send a message to one of the actors of this outbox."""
    send(find_broker(box.settings), box.settings.queue, actor_of(actor_name, box.name))


def _send_to_actor(actor_name: str) -> None:
    """Send a message to one of the outbox's actors, through the broker and queue of the current settings."""
    settings = loaded_settings()
    send(find_broker(settings), settings.queue, actor_name)


def send(broker: dramatiq.Broker, queue: str, actor_name: str) -> None:
    """Send a message to one of the outbox's actors, unless too many messages are unanswered (see `wakeup_flag`)."""
    if flag_for(broker, queue).may_send():
        _enqueue(broker, queue, actor_name)


def _enqueue(broker: dramatiq.Broker, queue: str, actor_name: str) -> None:
    message: dramatiq.Message[Any] = dramatiq.Message(
        queue_name=queue, actor_name=actor_name, args=(), kwargs={}, options={}
    )
    if is_rabbitmq(broker):
        sender_for(broker).enqueue(message)
    else:
        enqueue_now(broker, message)


_flags: WeakKeyDictionary[Any, dict[str, Flag]] = WeakKeyDictionary()


def flag_for(broker: dramatiq.Broker, queue: str) -> Flag:
    """Return the flag for this queue of the broker. It is created once in a process."""
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
        return MinimumInterval(lambda: sender_for(broker).count_waiting(queue))
    return MinimumInterval()
