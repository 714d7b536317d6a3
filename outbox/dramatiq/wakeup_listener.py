"""Receive wake-ups directly from Redis, and drain: the fast way from a commit to a handler.

A wake-up that travels through Dramatiq's queue is stored, fetched, given to a thread, and acknowledged. A worker
process whose broker uses Redis has threads besides, which wait in Redis for an element of a list. An emitting process
that sees such a worker adds that element, unless the list has one already, instead of sending a message: both happen
in the one script with which it asks for the flag (`wakeup_flag`). Redis gives the element to one of the waiting
workers, and removes it in the same step. So a process that finds an element has committed before the claim of the
worker that takes it.

It is only faster: sweeps still travel through Dramatiq, and emitters send messages again when no worker is listening.
A process has OUTBOX_DRAINS threads here, and one connection to Redis: one thread waits in Redis, and the others drain
or wait for their turn. The thread that waits keeps a connection to the database open: Peewee's pool would test it, with
a query, when the wake-up is there.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import Any

import redis

from outbox.core import Outbox
from outbox.dramatiq.wakeup_flag import listening_key, wakeup_key
from outbox.errors import OutboxError, as_sentence
from outbox.storage.connection_errors import CONNECTION_ERRORS

logger = logging.getLogger(__name__)

# How long one blocking call may take. It delays the stop of a worker.
BLOCK_SECONDS = 1.0
# The same for the first call, and the first after an error.
TRY_SECONDS = 0.01
# How often the mark that a worker is listening is set at most, and how long emitters rely on it.
MARK_SECONDS = 1.0
MARK_MILLISECONDS = 5_000
# How long to wait after an error of Redis or of the database.
RETRY_SECONDS = 1.0
# How often to check, while a worker stops, whether its threads have ended.
JOIN_SECONDS = 0.1


class WakeupListener:
    """The listening threads of one worker process."""

    def __init__(
        self, box: Outbox, broker: Any, *, keeps_connection: bool = True, retry_seconds: float = RETRY_SECONDS
    ) -> None:
        self.box = self._box = box
        make_client = getattr(broker, "make_blocking_client", None)  # of an OutboxRedisBroker
        self._has_own_client = make_client is not None
        self._client: redis.Redis = broker.client if make_client is None else make_client()
        self._block_seconds = _longest_block(self._client)
        self._keeps_connection = keeps_connection
        self._retry_seconds = retry_seconds
        queue_key = f"{broker.namespace}:{box.settings.queue}"
        self._key, self._mark_key = wakeup_key(queue_key), listening_key(queue_key)
        self._stopped = threading.Event()
        self._turn = threading.Lock()  # of the thread that waits in Redis
        self._can_receive = False  # whether waiting has worked since the last error
        self._marked_at = float("-inf")
        self._logged: str | None = None
        self._draining: set[threading.Thread] = set()
        self._threads = [
            threading.Thread(target=self._run, name=f"outbox-wakeup-{number}", daemon=True)
            for number in range(box.settings.drains)
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Tell the threads to end. They finish a drain that has begun, and begin no other."""
        self._stopped.set()

    def join(self, seconds: float) -> None:
        """Wait until no thread drains any more, for at most this many seconds; don't wait for a Redis that hangs."""
        began_at = time.monotonic()
        for thread in self._threads:
            while thread.is_alive():
                if time.monotonic() - began_at >= (seconds if thread in self._draining else 2 * BLOCK_SECONDS):
                    break
                thread.join(JOIN_SECONDS)
        if self._has_own_client:
            self._client.close()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._serve()
            except redis.RedisError as error:
                self._log("Could not wait for wake-ups in Redis: %s They go through Dramatiq's queue meanwhile.", error)
            except Exception as error:  # the thread must survive any error
                self._log("Could not claim due events: %s The next sweep tries again.", error)

    def _serve(self) -> None:
        """Wait for a wake-up, and drain."""
        try:
            if self._wait_for_wakeup():
                self._drain()
        except Exception:
            self._stopped.wait(self._retry_seconds)
            raise
        finally:
            self._box.dialect.release_connection()

    def _wait_for_wakeup(self) -> bool:
        """Wait for this thread's turn, and then in Redis; return whether there was a wake-up.

        While all drains that this process may run are running, another worker may take the wake-up.
        """
        with self._turn:
            while not self._stopped.is_set():
                if self._box.delivery.drain_limit.wait_for_slot(BLOCK_SECONDS) and self._receive():
                    return True
        return False

    def _receive(self) -> bool:
        """Wait in Redis for a wake-up, for at most `_block_seconds`; return whether there was one."""
        self._open_connection()
        could_receive, self._can_receive = self._can_receive, False
        # Emitters must not rely on this worker before it has seen that the server lets it wait.
        if could_receive and time.monotonic() - self._marked_at >= MARK_SECONDS:
            self._client.set(self._mark_key, 1, px=MARK_MILLISECONDS)
            self._marked_at = time.monotonic()
            self._logged = None
        seconds = self._block_seconds if could_receive else TRY_SECONDS
        received = self._client.blpop([self._key], seconds) is not None
        self._can_receive = True
        return received

    def _drain(self) -> None:
        self._draining.add(threading.current_thread())
        try:
            self._drain_with_working_connection()
        finally:
            self._draining.discard(threading.current_thread())
            if self._stopped.is_set():
                self._box.notifier.notify()  # the drain may have claimed nothing: another worker gets the wake-up

    def _drain_with_working_connection(self) -> None:
        try:
            self._box.drain()
        except CONNECTION_ERRORS:
            # The connection was opened before the wait, and may have been lost since.
            self._box.dialect.discard_connection()
            self._box.drain()

    def _open_connection(self) -> None:
        """Open this thread's connection before the wake-up comes. If that fails, the drain tries again."""
        if self._keeps_connection:
            with contextlib.suppress(OutboxError, *CONNECTION_ERRORS):
                self._box.dialect.check_file_exists()
                self._box.database.connect(reuse_if_open=True)

    def _log(self, text: str, error: Exception) -> None:
        """Log a warning, unless this one was logged before, and nothing has worked since."""
        if text != self._logged and not self._stopped.is_set():
            logger.warning(text, as_sentence(error))
        self._logged = text


def _longest_block(client: redis.Redis) -> float:
    """Return how long a call of this client may block: less than it waits for a response."""
    timeout = client.connection_pool.connection_kwargs.get("socket_timeout")
    return BLOCK_SECONDS if timeout is None else min(BLOCK_SECONDS, timeout / 2)
