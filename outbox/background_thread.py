"""Run a function in a daemon thread that is started on demand, survives a fork, and can be stopped.

The notifier, the timer, the lease keeper and the process reporter each own one. They run in processes that belong to
the application, so four rules hold for all of them:

- No thread is started by an import, nor by making an object: the first work starts it.
- A thread that has had no work for a while ends. The next work starts a new one.
- Threads don't exist in a forked child, and a lock may have been held at the fork by a thread that is gone. So in the
  child the owner begins again: with a new lock, without a thread, and with the state that `after_fork` sets up.
- A thread that is told to stop finishes its work, and the owner waits for that only for a limited time.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable


class BackgroundThread:
    """At most one running thread of its owner.

    `run` is called in the thread, with an event that is set when the thread is to stop, and the arguments of `start`.
    `changed` guards the state that the owner shares with the thread. It is replaced in a forked child: don't keep a
    reference to it.
    """

    def __init__(self, name: str, run: Callable[..., None], *, after_fork: Callable[[], None] | None = None) -> None:
        self._name = name
        self._run = run
        self._after_fork = after_fork
        self._reset()
        _background_threads.add(self)

    def _reset(self) -> None:
        self.changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()

    @property
    def is_running(self) -> bool:
        """Return whether a thread was started that has neither ended nor been told to stop."""
        return self._thread is not None

    def start(self, *arguments: object) -> None:
        """Start the thread unless it is running.

        Raise RuntimeError if no thread can be started: there is no memory for one more, or the interpreter is ending.
        """
        with self.changed:
            if self._thread is not None:
                return
            # Each thread has a stop event of its own: one that was told to stop may still be busy.
            stopped = threading.Event()
            thread = threading.Thread(target=self._run, args=(stopped, *arguments), name=self._name, daemon=True)
            thread.start()
            self._thread, self._stopped = thread, stopped

    def wait_for_work(self, has_work: Callable[[], bool], linger_seconds: float = 0.0) -> bool:
        """Wait until there is work; called in the thread. If none comes in that time, return False: `run` must return.

        `has_work` is called with `changed` acquired. So an owner that adds work with `changed` acquired, and then calls
        `start`, either has its work seen by this thread or starts a new one.
        """
        with self.changed:
            found = self.changed.wait_for(has_work, linger_seconds)
            if not found:
                self._thread = None
            return found

    def tell_to_stop(self) -> threading.Thread | None:
        """Set the stop event; return the thread, or None if there is none.

        The caller may join the thread, but only for a limited time: a process must be able to end.
        """
        with self.changed:
            thread, self._thread = self._thread, None
            self._stopped.set()
            return thread


_background_threads: weakref.WeakSet[BackgroundThread] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for each in list(_background_threads):
        each._reset()
        if each._after_fork is not None:
            each._after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
