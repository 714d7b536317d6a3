"""Check, within two seconds, whether the broker can be reached. The fallback poller uses this."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from outbox.dramatiq.broker_kind import is_redis
from outbox.errors import describe

# How long the broker may take to respond.
PROBE_SECONDS = 2.0
# The key that the probe writes to Redis expires after this time.
PROBE_KEY_MILLISECONDS = 1_000


class BrokerProbe:
    """Checks the broker in a separate thread, because a client without timeouts hangs as long as the broker does."""

    def __init__(self, broker: Any, queue: str) -> None:
        self._broker = broker
        self._queue = queue
        self._thread: threading.Thread | None = None
        self._error: str | None = None

    def find_error(self) -> str | None:
        """Check the broker; return why it can't be reached, or None if it can."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._check, name="outbox-broker-probe", daemon=True)
            self._thread.start()
        self._thread.join(PROBE_SECONDS)
        if self._thread.is_alive():  # the next call waits for the same thread, so that at most one thread hangs
            return f"no response within {PROBE_SECONDS:g} s"
        self._thread = None
        return self._error

    def _check(self) -> None:
        try:
            check_broker(self._broker, self._queue)
        except Exception as error:
            self._error = describe(error)
        else:
            self._error = None


def check_broker(broker: Any, queue: str) -> None:
    """Write a key to Redis, or connect to RabbitMQ. If that fails, the error of the broker's client is raised.

    The check does not send a message, because each message makes a worker claim, and every idle worker checks.
    Brokers of other kinds count as reachable. If they deliver no messages, the poller notices that sweeps are missing.
    """
    if is_redis(broker):
        # A write, because enqueueing is a write too. A Redis that is full, or is a read-only replica, still responds
        # to a PING.
        broker.client.set(f"{broker.namespace}:{queue}.probe", 1, px=PROBE_KEY_MILLISECONDS)
    elif hasattr(type(broker), "connection"):
        _connect(broker)


def _connect(broker: Any) -> None:
    """Open a connection to RabbitMQ, and close it: Dramatiq's broker keeps one connection for each thread."""
    try:
        broker.connection  # noqa: B018  (a property that connects)
    finally:
        with contextlib.suppress(Exception):
            del broker.connection
