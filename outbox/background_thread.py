"""Run a function in a daemon thread that is started on demand, survives a fork, and can be stopped.

The notifier, the timer, the lease keeper and the process reporter each own a BackgroundThread. These threads run in
processes of the application, so five rules hold for all of them:

- Neither an import nor creating an object starts a thread. The first work starts it.
- A thread that has had no work for a while ends. The next work starts a new thread.
- A forked child has none of its parent's threads, but a lock that one of them held at the fork stays locked. So in the
  child each owner starts again: with a new lock, without a thread, and with the state that `after_fork` sets up.
- Other locks can't be replaced in the child: those inside sys.stderr, SQLite's library or a module that is being
  imported. So a thread acquires `fork_lock` while it works, and a fork waits for that lock for a limited time.
- A thread that is told to stop finishes its work. The owner waits for that only for a limited time.
"""

from __future__ import annotations

import logging  # noqa: F401  (registered for forks before this module is, see the end of the module)
import os
import threading
import time
import weakref
from collections.abc import Callable

# How long a fork waits for the background threads of this process, all together.
FORK_SECONDS = 1.0


class BackgroundThread:
    """Runs at most one thread at a time for its owner.

    The thread calls `run` with a stop event, which is set when the thread is to stop, and with the arguments of
    `start`. The condition `changed` guards the state that the owner shares with the thread. `run` acquires `fork_lock`
    for everything that writes a log line, connects, or calls other libraries, and releases it while it waits for work.
    A forked child gets a new condition and a new lock, so don't keep references to them.
    """

    def __init__(self, name: str, run: Callable[..., None], *, after_fork: Callable[[], None] | None = None) -> None:
        self._name = name
        self._run = run
        self._after_fork = after_fork
        self._reset()
        _background_threads.add(self)

    def _reset(self) -> None:
        self.changed = threading.Condition()
        self.fork_lock = threading.RLock()  # reentrant, because what the thread calls may fork
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()

    @property
    def is_running(self) -> bool:
        """Return whether a thread was started that has neither ended nor been told to stop."""
        return self._thread is not None

    def start(self, *arguments: object) -> None:
        """Start the thread unless it is running.

        Raise RuntimeError if no thread can be started, because memory is short or the interpreter is ending.
        """
        with self.changed:
            if self._thread is not None:
                return
            # Each thread has its own stop event, because an earlier thread that was told to stop may still be running.
            stopped = threading.Event()
            thread = threading.Thread(target=self._run, args=(stopped, *arguments), name=self._name, daemon=True)
            thread.start()
            self._thread, self._stopped = thread, stopped

    def wait_for_work(self, has_work: Callable[[], bool], linger_seconds: float = 0.0) -> bool:
        """Wait until `has_work` returns True. If it does not within `linger_seconds`, return False: `run` must return.

        The thread itself calls this, from `run`. `has_work` is called with `changed` acquired. So if an owner adds work
        with `changed` acquired, and then calls `start`, either this thread sees the work or a new thread is started.
        """
        with self.changed:
            there_is_work = self.changed.wait_for(has_work, linger_seconds)
            if not there_is_work:
                self._thread = None
            return there_is_work

    def tell_to_stop(self) -> threading.Thread | None:
        """Set the stop event; return the thread, or None if none is running.

        The caller may join the thread, but only with a timeout, because a process must be able to end.
        """
        with self.changed:
            thread, self._thread = self._thread, None
            self._stopped.set()
            return thread


_background_threads: weakref.WeakSet[BackgroundThread] = weakref.WeakSet()


class _AcquiredForFork(threading.local):
    """The locks that this thread has acquired for the fork that it is about to make: two threads may fork at once."""

    def __init__(self) -> None:
        self.locks: list[threading.RLock] = []


_acquired_for_fork = _AcquiredForFork()


def _before_fork() -> None:
    ends_at = time.monotonic() + FORK_SECONDS
    for each in list(_background_threads):
        lock = each.fork_lock
        if lock.acquire(timeout=max(0.0, ends_at - time.monotonic())):
            _acquired_for_fork.locks.append(lock)


def _after_fork_in_parent() -> None:
    while _acquired_for_fork.locks:
        _acquired_for_fork.locks.pop().release()


def _after_fork_in_child() -> None:
    _acquired_for_fork.locks.clear()
    for each in list(_background_threads):
        each._reset()
        if each._after_fork is not None:
            each._after_fork()


# Python calls what was registered last first. This comes before `logging`, which acquires its lock for the fork: a
# background thread may need that lock to finish its work.
os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
