"""Send messages to RabbitMQ from a process that must not consume the outbox's queue.

Dramatiq's `RabbitmqBroker.enqueue` declares the message's queue on the broker, and a Dramatiq worker in the same
process starts to consume every queue that is declared. So an application's own worker would take wake-ups as soon as
one of its actors emits. The broker also opens a connection for each thread that sends, and keeps it after the thread
has ended. Therefore the outbox sends through a copy of the broker, with one connection and without a worker's
middleware.
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

# A connection that was idle for longer is closed and opened anew: the server may have closed it, and a message that is
# written to it then is lost without an error. This is well below the usual heartbeats.
IDLE_SECONDS = 2.0


def is_rabbitmq(broker: object) -> bool:
    """Return whether the broker is Dramatiq's for RabbitMQ, without importing it: pika is Dramatiq's extra."""
    module: Any = sys.modules.get("dramatiq.brokers.rabbitmq")
    return module is not None and isinstance(broker, module.RabbitmqBroker)


def looks_like_dramatiq_default(broker: Any) -> bool:
    """Return whether the broker looks like the one that Dramatiq makes when none is set."""
    parameters = broker.parameters
    found = tuple(
        getattr(parameters, name, None)
        for name in ("host", "port", "heartbeat", "connection_attempts", "blocked_connection_timeout")
    )
    return found == ("127.0.0.1", 5672, 5, 5, 30)


class Sender:
    """Sends messages to RabbitMQ over one connection of its own, which all threads share."""

    def __init__(self, broker: Any) -> None:
        self._lock = threading.Lock()
        self._copy = copy.copy(broker)
        self._middleware = broker.middleware  # the list itself: the application may add to it
        self._start_afresh()

    def _start_afresh(self) -> None:
        """Forget the connection without closing it: after a fork it is the parent's."""
        self._pid = os.getpid()
        self._used_at = time.monotonic()
        self._copy.queues, self._copy.queues_pending, self._copy.delay_queues = set(), set(), set()
        self._copy.connections, self._copy.channels = set(), set()
        self._copy.state = SimpleNamespace()  # instead of one for each thread

    def enqueue(self, message: dramatiq.Message[Any]) -> None:
        with self._connected() as broker:
            broker.enqueue(message)

    def waiting(self, queue: str) -> int:
        """Return how many messages wait in the queue; 0 if RabbitMQ can't be asked: sending then raises the error."""
        with self._connected() as broker:
            try:
                return int(broker.get_queue_message_counts(queue)[0])
            except Exception:
                with contextlib.suppress(Exception):
                    del broker.connection
                return 0

    @contextlib.contextmanager
    def _connected(self) -> Iterator[Any]:
        with self._lock:
            if self._pid != os.getpid():
                self._start_afresh()
            elif time.monotonic() - self._used_at > IDLE_SECONDS:
                with contextlib.suppress(Exception):
                    del self._copy.connection
            # Leave out the middleware through which a worker learns of declared queues.
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
