"""Waking a worker: one message, however many commits ask for it.

Before a message is sent a flag goes up, and while it is up nobody else sends one. The actor takes it down before it
looks at the table. So whoever finds the flag up has committed before somebody looks: no commit falls between the two.
The flag comes down by itself after a second, should its owner have died before it could send; and a sweep, which
ignores it, covers whatever else is lost.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import dramatiq
from dramatiq.brokers.stub import StubBroker

import outbox
from outbox.core import Outbox
from outbox.dramatiq.middleware import has_worker
from outbox.errors import OutboxError

logger = logging.getLogger("outbox")

DELIVER = "deliver_outbox_events"
CLEANUP = "cleanup_delivered_outbox_events"

FLAG_MILLISECONDS = 1_000
# Messages that wait in the queue will be answered after now, whoever sent them: with this many, one more says nothing.
# So workers that were dead for a night find no pile. (An age limit would go by the hosts' clocks, which may differ.)
ENOUGH_WAITING = 100


class NobodyHere(OutboxError):
    """There is no broker between processes, and this one has no worker."""

    def __init__(self) -> None:
        super().__init__(
            "OUTBOX_REDIS_URL is not set, and no worker runs in this process "
            "(if sweeps are enough, OUTBOX_DISPATCH=off says so)"
        )


# One round trip instead of two. While plenty are waiting the flag need not go up: nobody is to send one.
PUT_UP = """
if redis.call('LLEN', KEYS[2]) >= tonumber(ARGV[2]) then return 0 end
return redis.call('SET', KEYS[1], 1, 'NX', 'PX', ARGV[1]) and 1 or 0
"""


class Flag(Protocol):
    """Up: a wake-up is on its way."""

    looks_at_queue: bool

    def put_up(self) -> bool:
        """Whether it was down until now; one that looks at the queue stays down while plenty wait there."""

    def take_down(self) -> None: ...


class RedisFlag:
    """Shared by all processes with the same Redis and queue."""

    looks_at_queue = True

    def __init__(self, client: Any, queue_key: str) -> None:
        self._client = client
        self._keys = (f"{queue_key}.flag", queue_key)
        self._put_up = client.register_script(PUT_UP)

    def put_up(self) -> bool:
        return bool(self._put_up(self._keys, (FLAG_MILLISECONDS, ENOUGH_WAITING)))

    def take_down(self) -> None:
        self._client.delete(self._keys[0])


class LocalFlag:
    """Within one process. It needs no end of its own: a crash takes it along."""

    looks_at_queue = False

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._up = False

    def put_up(self) -> bool:
        with self._lock:
            was_up, self._up = self._up, True
            return not was_up

    def take_down(self) -> None:
        with self._lock:
            self._up = False


def ring_once(flag: Flag, send: Callable[[], None]) -> None:
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


def ring(box: Outbox) -> None:
    """What the bell calls after commits when OUTBOX_DISPATCH is `dramatiq`."""
    broker = dramatiq.get_broker()
    if isinstance(broker, StubBroker) and not has_worker(broker):
        raise NobodyHere
    ring_on(broker, box.settings.queue)


def ring_on(broker: dramatiq.Broker, queue: str) -> None:
    """Have somebody look at the table, unless somebody is about to."""
    flag = flag_for(broker, queue)
    enqueue = _enqueue if flag.looks_at_queue else send
    ring_once(flag, lambda: enqueue(broker, queue, DELIVER))


def sweep() -> None:
    """Have somebody look at the table, flag or no flag."""
    send(dramatiq.get_broker(), outbox.loaded_settings().queue, DELIVER)


def clean_up() -> None:
    """Have somebody delete what is old."""
    send(dramatiq.get_broker(), outbox.loaded_settings().queue, CLEANUP)


def send(broker: dramatiq.Broker, queue: str, actor_name: str) -> None:
    """Enqueue a message for one of our actors, unless plenty are waiting."""
    if _waiting(broker, queue) < ENOUGH_WAITING:
        _enqueue(broker, queue, actor_name)


def _enqueue(broker: dramatiq.Broker, queue: str, actor_name: str) -> None:
    broker.enqueue(dramatiq.Message(queue_name=queue, actor_name=actor_name, args=(), kwargs={}, options={}))


def _waiting(broker: Any, queue: str) -> int:
    if hasattr(broker, "client") and hasattr(broker, "namespace"):
        return int(broker.client.llen(f"{broker.namespace}:{queue}"))
    in_process = getattr(broker, "queues", {})
    return int(in_process[queue].qsize()) if isinstance(in_process, dict) and queue in in_process else 0


_flags: WeakKeyDictionary[Any, dict[str, Flag]] = WeakKeyDictionary()


def flag_for(broker: Any, queue: str) -> Flag:
    """The flag of a broker's queue."""
    flags = _flags.setdefault(broker, {})
    if queue not in flags:
        shared = hasattr(broker, "client") and hasattr(broker, "namespace")
        flags[queue] = RedisFlag(broker.client, f"{broker.namespace}:{queue}") if shared else LocalFlag()
    return flags[queue]
