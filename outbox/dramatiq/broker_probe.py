"""Find out, within two seconds, whether the broker can be reached. The fallback poller asks this."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from outbox.dramatiq.broker_kind import is_redis
from outbox.errors import describe

# How long the broker may take to answer.
PROBE_SECONDS = 2.0
PROBE_KEY_MILLISECONDS = 1_000


class BrokerProbe:
    """Asks the broker from a thread of its own: a client without timeouts hangs for as long as the broker does."""

    def __init__(self, broker: Any, queue: str) -> None:
        self._broker = broker
        self._queue = queue
        self._thread: threading.Thread | None = None
        self._error: str | None = None

    def error(self) -> str | None:
        """Return why the broker can't be reached, or None if it can."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._ask, name="outbox-broker-probe", daemon=True)
            self._thread.start()
        self._thread.join(PROBE_SECONDS)
        if self._thread.is_alive():  # the next call waits for the same thread: hanging threads don't add up
            return f"no answer within {PROBE_SECONDS:g} s"
        self._thread = None
        return self._error

    def _ask(self) -> None:
        try:
            ask(self._broker, self._queue)
        except Exception as error:
            self._error = describe(error)
        else:
            self._error = None


def ask(broker: Any, queue: str) -> None:
    """Raise what the broker's client raises if the broker can't be used.

    The question must start no claim: a message would start one in some worker, for every idle worker that asks.
    Brokers of other kinds count as reachable; the poller notices when they bring no messages.
    """
    if is_redis(broker):
        # A write, as every message is: a Redis that is full, or a read-only replica, would answer a PING.
        broker.client.set(f"{broker.namespace}:{queue}.probe", 1, px=PROBE_KEY_MILLISECONDS)
    elif hasattr(type(broker), "connection"):
        _connect(broker)


def _connect(broker: Any) -> None:
    """Open and close a connection to RabbitMQ: Dramatiq's broker opens one for each thread that uses it."""
    try:
        broker.connection  # noqa: B018  (a property that connects)
    finally:
        with contextlib.suppress(Exception):
            del broker.connection
