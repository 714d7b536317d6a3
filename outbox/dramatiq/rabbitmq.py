"""Send messages to RabbitMQ from a process that must not consume the outbox's queue.

Dramatiq's `RabbitmqBroker.enqueue` declares the message's queue on the broker, and a Dramatiq worker in the same
process starts to consume every queue that is declared. So an application's own worker would take wake-ups as soon as
one of its actors emits. The broker also opens a connection for each thread that sends, and keeps the connection after
the thread has ended. Therefore the outbox sends through a copy of the broker. The copy has one connection, and it does
not have the middleware that a worker adds.
"""

from __future__ import annotations

import contextlib
import copy
import os
import sys
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import dramatiq

from outbox.dramatiq.enqueue_now import enqueue_now, remove_hooks

# A connection that was idle for longer is closed, and a new one is opened. The server may have closed the old one, and
# a message that is written to a closed connection is lost without an error. Usual heartbeat timeouts are much longer.
IDLE_SECONDS = 2.0


def is_rabbitmq(broker: object) -> bool:
    """Return whether this is Dramatiq's RabbitmqBroker.

    This function does not import that class, because the import needs pika, an optional dependency of Dramatiq.
    """
    module: Any = sys.modules.get("dramatiq.brokers.rabbitmq")
    return module is not None and isinstance(broker, module.RabbitmqBroker)


def looks_like_dramatiq_default(broker: Any) -> bool:
    """Return whether the broker has the parameters of the one that Dramatiq creates if none is set."""
    parameters = broker.parameters
    values = tuple(
        getattr(parameters, name, None)
        for name in ("host", "port", "heartbeat", "connection_attempts", "blocked_connection_timeout")
    )
    return values == ("127.0.0.1", 5672, 5, 5, 30)


class Sender:
    """Sends messages to RabbitMQ over one connection of its own, which all threads share."""

    def __init__(self, broker: Any) -> None:
        self._lock = threading.Lock()
        self._copy = copy.copy(broker)
        remove_hooks(self._copy)
        # Without confirmations, a message that is written to a connection that has just been lost is lost with it.
        self._copy.confirm_delivery = True
        self._middleware = broker.middleware  # the same list, not a copy: the application may add middleware later
        self._reset()

    def _reset(self) -> None:
        """Start without a connection and without declared queues.

        An old connection is not closed: this runs in a forked child, and the connection is the parent's.
        """
        self._pid = os.getpid()
        self._used_at = time.monotonic()
        self._copy.queues, self._copy.queues_pending, self._copy.delay_queues = set(), set(), set()
        self._copy.connections, self._copy.channels = set(), set()
        self._copy.state = SimpleNamespace()  # one for all threads, instead of one for each

    def enqueue(self, message: dramatiq.Message[Any], *, is_stored: bool = False) -> None:
        """Enqueue the message over the shared connection. `is_stored`: as in `enqueue_now`."""
        with self._connected() as broker:
            enqueue_now(broker, message, is_stored=is_stored)

    def count_waiting(self, queue: str) -> int:
        """Return how many messages wait in the queue. Return 0 on an error; the next `enqueue` raises it."""
        with self._connected() as broker:
            try:
                return int(broker.get_queue_message_counts(queue)[0])
            except Exception:
                with contextlib.suppress(Exception):
                    del broker.connection
                return 0

    @contextlib.contextmanager
    def _connected(self) -> Iterator[Any]:
        """Yield the copy of the broker for the use of one thread. The copy connects when it is used."""
        with self._lock:
            if self._pid != os.getpid():
                self._reset()
            elif time.monotonic() - self._used_at > IDLE_SECONDS:
                with contextlib.suppress(Exception):
                    del self._copy.connection
            # Leave out the worker's own middleware: through it, a worker would start to consume the message's queue.
            self._copy.middleware = [each for each in self._middleware if type(each).__module__ != "dramatiq.worker"]
            try:
                yield self._copy
            finally:
                self._used_at = time.monotonic()


_senders: WeakKeyDictionary[Any, Sender] = WeakKeyDictionary()


def sender_for(broker: Any) -> Sender:
    """Return the one sender of this process for the broker."""
    if broker not in _senders:
        _senders.setdefault(broker, Sender(broker))
    return _senders[broker]
