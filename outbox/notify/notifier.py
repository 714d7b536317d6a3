"""The bell: after a commit, somebody should look at the table.

It is a hint. It may be lost, doubled or late and the system stays right, only slower; so it is rung from a thread of
its own, never makes the caller wait or fail, and says once, not per event, that no worker could be notified.

Peewee runs `after_commit` callbacks in more cases than it should (a savepoint rolled back, an aborted PostgreSQL
transaction, a plain BEGIN): ringing for nothing is harmless. It drops them in others (another callback raised, a
manual commit): then the next sweep finds the event.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections.abc import Callable

from outbox.notify.after_commit import AfterCommit
from outbox.notify.timer import Timer
from outbox.storage.dialect import Dialect

logger = logging.getLogger("outbox")

FLUSH_SECONDS = 2.0
LINGER_SECONDS = 10.0
# Between two wake-ups while commits keep coming: at first, and when they have gone on for a while. A wake-up takes
# Python as long as several emits, and the one before has most likely not been answered yet.
LEAST_REST_SECONDS = 0.001
MOST_REST_SECONDS = 0.005


class Notifier:
    """Calls `wake` after commits: in the background, or at once when `inline`.

    `prepare` is called once, by the first emit: what `wake` has to import can't be imported any more by a thread when
    the process is about to end.
    """

    def __init__(
        self, wake: Callable[[], None] | None, *, prepare: Callable[[], object] | None = None, inline: bool = False
    ) -> None:
        self._wake = wake
        self._prepare = prepare
        self._inline = inline
        self._failing = False
        self._commits = AfterCommit(self._committed)
        self._start_afresh()
        _notifiers.add(self)

    def _start_afresh(self) -> None:
        """No thread yet. Also what a fork leaves behind: threads don't follow into the child."""
        self._lock = threading.Lock()
        self._rung = threading.Event()
        self._idle = threading.Event()
        self._idle.set()
        self._hurry = threading.Event()
        self._thread: threading.Thread | None = None
        self._timer = Timer(self.notify)

    @property
    def runs_in_background(self) -> bool:
        """Whether it wakes another process, or another thread of this one."""
        return self._wake is not None and not self._inline

    def notify_after_commit(self, dialect: Dialect) -> None:
        """Ring once the transaction of this thread has committed; at once if there is none."""
        if self._wake is None:
            return
        if self._prepare is not None:
            self._call_prepare()
        try:
            self._commits.add(dialect)
        except ValueError:
            # manual_commit: Peewee does not know when that commits. A sweep will find the event.
            logger.debug("emitted inside manual_commit: the next sweep delivers it")

    def notify(self) -> None:
        """Wake somebody soon; never blocks, never raises."""
        if self._wake is None or self._inline:
            return
        with self._lock:
            self._idle.clear()
            self._rung.set()
            if self._thread is None:
                self._start_thread()

    def notify_in(self, seconds: float) -> None:
        """Wake somebody after so long, if this process is still there."""
        if self._wake is not None and not self._inline:
            self._timer.set(seconds)

    def flush(self, seconds: float = FLUSH_SECONDS) -> None:
        """Give a ring that is under way a moment to get out."""
        self._hurry.set()
        self._idle.wait(seconds)
        self._hurry.clear()

    def _committed(self, dialect: Dialect, _: int) -> None:
        if not self._inline:
            self.notify()
        elif dialect.database.in_transaction():
            # `commit()` in the middle of a block: Peewee still counts it as open. Wait for its end.
            self._commits.add(dialect)
        elif not dialect.in_transaction:
            self._call_wake()

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._answer, name="outbox-notifier", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no memory for one more, or the interpreter is ending
            self._idle.set()
            self._failed(error)
        else:
            self._thread = thread

    def _answer(self) -> None:
        rest = LEAST_REST_SECONDS
        while self._is_rung():
            self._call_wake()
            with self._lock:
                if not self._rung.is_set():
                    self._idle.set()
            self._hurry.wait(rest)
            rest = min(2 * rest, MOST_REST_SECONDS) if self._rung.is_set() else LEAST_REST_SECONDS

    def _is_rung(self) -> bool:
        """Wait for a ring; the thread ends when none comes for a while."""
        self._rung.wait(LINGER_SECONDS)
        with self._lock:
            rung = self._rung.is_set()
            self._rung.clear()
            if not rung:
                self._thread = None
            return rung

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
                "Could not notify a worker: %s. Workers also look for due events every OUTBOX_SWEEP_SECONDS; "
                "further failures are not logged.",
                error,
            )
        self._failing = True


_notifiers: weakref.WeakSet[Notifier] = weakref.WeakSet()


def _after_fork() -> None:
    for notifier in _notifiers:
        notifier._start_afresh()


def _at_exit() -> None:
    for notifier in list(_notifiers):
        notifier.flush()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
