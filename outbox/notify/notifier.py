"""Notify a worker after a commit that there may be events to deliver.

A notification is a hint. If it is lost, doubled or late, deliveries stay correct and are only slower. So the notifier
sends it from a thread of its own, and never makes the caller wait or fail. If no worker can be notified, it logs that
once, not per event.

Peewee runs `after_commit` callbacks in more cases than it should: after a savepoint that was rolled back, an aborted
PostgreSQL transaction, or a plain BEGIN. A needless notification does no harm. In other cases Peewee drops the
callbacks: if another callback raised, or after a manual commit. Then the next sweep finds the event: the scheduler
notifies a worker every OUTBOX_SWEEP_SECONDS.
"""

from __future__ import annotations

import atexit
import logging
import threading
import weakref
from collections.abc import Callable

from outbox.background_thread import BackgroundThread
from outbox.errors import as_sentence
from outbox.notify.after_commit import AfterCommit
from outbox.notify.timer import Timer
from outbox.storage.dialect import Dialect

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 2.0
# How long the thread waits for another notification before it ends.
LINGER_SECONDS = 10.0
# How long the thread pauses between two notifications while transactions keep committing: at first, and at most.
# Sending a notification takes as long as several emits, and the worker has most likely not reacted to the previous one
# yet.
SHORTEST_PAUSE_SECONDS = 0.001
LONGEST_PAUSE_SECONDS = 0.005


class Notifier:
    """Calls `wake` after commits: in a background thread, or, if `inline`, at once in the thread that committed.

    `wake` tells a worker to deliver events; inline, it delivers them itself. It is None if OUTBOX_DISPATCH is `off`:
    then the notifier does nothing. `prepare` is called once, by the first emit: it imports what `wake` needs, because a
    thread can't import anything once the process is ending.
    """

    def __init__(
        self,
        wake: Callable[[], None] | None,
        *,
        prepare: Callable[[], object] | None = None,
        inline: bool = False,
        linger_seconds: float = LINGER_SECONDS,
        shortest_pause_seconds: float = SHORTEST_PAUSE_SECONDS,
    ) -> None:
        self._wake = wake
        self._prepare = prepare
        self._inline = inline
        self._linger_seconds = linger_seconds
        self._shortest_pause_seconds = shortest_pause_seconds
        self._failing = False
        self._commits = AfterCommit(self._committed)
        self._timer = Timer(self.notify)
        self._thread = BackgroundThread("outbox-notifier", self._run, after_fork=self._begin)
        self._begin()
        _notifiers.add(self)

    def _begin(self) -> None:
        """Set up the state with nothing to send, in a forked child too: the parent sends its own notifications."""
        self._requested = False
        self._idle = threading.Event()
        self._idle.set()
        self._flushing = threading.Event()

    @property
    def runs_in_background(self) -> bool:
        """Return whether `notify` reaches a worker in another process, or in another thread of this one."""
        return self._wake is not None and not self._inline

    def notify_after_commit(self, dialect: Dialect) -> None:
        """Notify a worker once the transaction of this thread has committed; at once if there is none."""
        if self._wake is None:
            return
        if self._prepare is not None:
            self._call_prepare()
        try:
            self._commits.add(dialect, 1)
        except ValueError:  # Peewee does not know when a `manual_commit` block commits
            logger.debug("An event was emitted inside manual_commit: the next sweep finds it.")

    def notify(self) -> None:
        """Notify a worker soon, from the background thread. It never blocks or raises. Inline it does nothing."""
        if self._wake is None or self._inline:
            return
        thread = self._thread
        with thread.changed:
            self._idle.clear()
            self._requested = True
            thread.changed.notify()
            if not thread.is_running:
                self._start_thread()

    def notify_in(self, seconds: float) -> None:
        """Notify a worker after this many seconds, if this process is still running then."""
        if self._wake is not None and not self._inline:
            self._timer.set(seconds)

    def flush(self, seconds: float = FLUSH_SECONDS) -> None:
        """Wait until requested notifications are sent, but no longer than `seconds`."""
        self._flushing.set()
        self._idle.wait(seconds)
        self._flushing.clear()

    def _committed(self, dialect: Dialect, _: int) -> None:
        if not self._inline:
            self.notify()
        elif dialect.database.in_transaction():
            # The application called `commit()` inside an `atomic` block, which is still open. Wait for its end.
            self._commits.add(dialect, 1)
        elif not dialect.in_transaction:
            self._call_wake()

    def _start_thread(self) -> None:
        try:
            self._thread.start()
        except RuntimeError as error:
            self._idle.set()
            self._failed(error)

    def _run(self, _: threading.Event) -> None:
        shortest = pause = self._shortest_pause_seconds
        while self._thread.wait_for_work(lambda: self._requested, self._linger_seconds):
            self._requested = False  # before the call, because a commit during the call needs another one
            with self._thread.fork_lock:
                self._call_wake()
            with self._thread.changed:
                if not self._requested:
                    self._idle.set()
            self._flushing.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS) if self._requested else shortest

    def _call_prepare(self) -> None:
        prepare, self._prepare = self._prepare, None
        try:
            if prepare is not None:
                prepare()
        except Exception as error:
            self._failed(error)

    def _call_wake(self) -> None:
        assert self._wake is not None  # noqa: S101  (for the type checker)
        try:
            self._wake()
        except Exception as error:
            self._failed(error)
        else:
            if self._failing:
                logger.info("Workers can be notified again.")
            self._failing = False

    def _failed(self, error: Exception) -> None:
        if not self._failing:
            logger.warning(
                "Could not notify a worker: %s Workers also look for due events every OUTBOX_SWEEP_SECONDS; "
                "further failures are not logged.",
                as_sentence(error),
            )
        self._failing = True


_notifiers: weakref.WeakSet[Notifier] = weakref.WeakSet()


def _flush_at_exit() -> None:
    for notifier in list(_notifiers):
        notifier.flush()


atexit.register(_flush_at_exit)
