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

A thread that has received a wake-up keeps its turn until it has claimed: the next thread would compete with it for the
interpreter's lock just then. It may also run a share itself (`drain_thread`). While threads do that, others take their
place, so that OUTBOX_DRAINS threads can drain or wait.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from functools import partial
from typing import Any, Self

import redis

from outbox.core import Outbox
from outbox.delivery.drain_thread import DrainThread
from outbox.delivery.share_threads import Overdue
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
        self._lock = threading.Lock()  # guards the following
        self._threads: list[threading.Thread] = []
        self._draining: set[threading.Thread] = set()
        self._waiting = 0  # how many threads wait for a wake-up, or for their turn to
        self._numbers = itertools.count()

    def start(self) -> None:
        """Start the threads."""
        for _ in range(self._box.settings.drains):
            self._start_thread()

    def _start_thread(self) -> None:
        with self._lock:
            name = f"outbox-wakeup-{next(self._numbers)}"
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            thread.start()
            self._threads = [*filter(threading.Thread.is_alive, self._threads), thread]

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
        while not self._stopped.is_set() and self._waiting < self._box.settings.drains:
            try:
                self._serve()
            except redis.RedisError as error:
                self._log("Could not wait for wake-ups in Redis: %s They go through Dramatiq's queue meanwhile.", error)
            except (Exception, Overdue) as error:  # the thread must survive any error
                self._log("Could not claim due events: %s The next sweep tries again.", error)

    def _serve(self) -> None:
        """Wait for a wake-up, and drain."""
        with Turn(self._turn) as turn:
            try:
                if self._wait_for_wakeup(turn):
                    self._drain(turn)
            except Exception:
                turn.end()
                self._stopped.wait(self._retry_seconds)
                raise
            finally:
                self._box.dialect.release_connection()

    def _wait_for_wakeup(self, turn: Turn) -> bool:
        """Wait for this thread's turn, and then in Redis; return whether there was a wake-up.

        While all drains that this process may run are running, another worker may take the wake-up.
        """
        self._count_waiting(1)
        try:
            turn.begin()
            while not self._stopped.is_set():
                if self._box.delivery.drain_limit.wait_for_slot(BLOCK_SECONDS) and self._receive():
                    return True
            return False
        finally:
            self._count_waiting(-1)

    def _count_waiting(self, change: int) -> None:
        with self._lock:
            self._waiting += change

    def _hand_over(self, turn: Turn) -> None:
        """Let another thread wait for the next wake-up; if there is none, start one."""
        turn.end()
        if self._waiting == 0 and not self._stopped.is_set():
            try:
                self._start_thread()
            except RuntimeError as error:  # no memory for one more thread
                self._log("Could not start a thread that waits for wake-ups: %s", error)

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

    def _drain(self, turn: Turn) -> None:
        self._draining.add(threading.current_thread())
        try:
            self._drain_with_working_connection(turn)
        finally:
            self._draining.discard(threading.current_thread())
            if self._stopped.is_set():
                self._box.notifier.notify()  # the drain may have claimed nothing: another worker gets the wake-up

    def _drain_with_working_connection(self, turn: Turn) -> None:
        hand_over = partial(self._hand_over, turn)
        try:
            self._box.drain(DrainThread(hand_over))
        except CONNECTION_ERRORS:
            # The connection was opened before the wait, and may have been lost since.
            self._box.dialect.discard_connection()
            self._box.drain(DrainThread(hand_over))

    def _open_connection(self) -> None:
        """Open this thread's connection before the wake-up comes. If that fails, the drain tries again."""
        if self._keeps_connection:
            with contextlib.suppress(OutboxError, *CONNECTION_ERRORS):
                self._box.dialect.check_file_exists()
                self._box.database.connect(reuse_if_open=True)

    def _log(self, text: str, error: BaseException) -> None:
        """Log a warning, unless this one was logged before, and nothing has worked since."""
        if text != self._logged and not self._stopped.is_set():
            logger.warning(text, as_sentence(error))
        self._logged = text


class Turn:
    """The right of one thread to wait in Redis, from `begin` to `end` or the end of the block."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._has_begun = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def begin(self) -> None:
        """Wait until no other thread has the turn."""
        self._lock.acquire()
        self._has_begun = True

    def end(self) -> None:
        """Let another thread have the turn, if this thread has it."""
        if self._has_begun:
            self._has_begun = False
            self._lock.release()


def _longest_block(client: redis.Redis) -> float:
    """Return how long a call of this client may block: less than it waits for a response."""
    timeout = client.connection_pool.connection_kwargs.get("socket_timeout")
    return BLOCK_SECONDS if timeout is None else min(BLOCK_SECONDS, timeout / 2)
