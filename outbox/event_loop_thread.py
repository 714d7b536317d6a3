"""Run coroutines on one event loop, in a daemon thread of this process: for handlers that are `async def`.

There is one loop for the whole process. What the coroutines share - database pools, HTTP clients - belongs to the loop
on which it was first used. So `asyncio.run`, which makes a loop for each call, can't be used.

The thread starts with the first coroutine. A forked child has none of its parent's threads, and starts one of its own.
`stop` cancels what is running, and closes the loop; the next coroutine starts another one.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any

logger = logging.getLogger(__name__)

# How long `stop` waits for the tasks that it has cancelled.
STOP_SECONDS = 5.0
# A loop that has not responded for this long is blocked by a call.
BLOCKED_SECONDS = 1.0

Task = asyncio.Task[None]


class EventLoopThread:
    """An event loop, and the thread that runs it."""

    def __init__(self, name: str, *, blocked_seconds: float = BLOCKED_SECONDS) -> None:
        self._name = name
        self._blocked_seconds = blocked_seconds
        # The loops of parent processes: closing them here would close what the parent uses.
        self._loops_of_parents: list[asyncio.AbstractEventLoop] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self.forget()

    def forget(self) -> None:
        """Set up the state without a loop, in a forked child too: the parent's loop runs in the parent."""
        if self._loop is not None:
            self._loops_of_parents.append(self._loop)
        self._lock = threading.Lock()
        self._loop = None
        self._thread: threading.Thread | None = None
        # When the loop was last asked to respond, and whether it was reported that it did not.
        self._asked_at: float | None = None
        self._is_reported = False

    @property
    def is_current(self) -> bool:
        """Return whether the calling code runs on this loop, and so must not wait for it."""
        return self._thread is threading.current_thread()

    def create_task(self, coroutine: Callable[[], Coroutine[Any, Any, None]], created: Callable[[Task], None]) -> None:
        """Run a coroutine as a task of the loop, in a copy of the caller's context; call `created` with it there."""
        with self._lock:
            if self._loop is None:
                self._start()
            assert self._loop is not None  # noqa: S101  (for the type checker)
            loop = self._loop
            loop.call_soon_threadsafe(lambda: created(loop.create_task(coroutine())))

    def call_soon(self, call: Callable[[], object]) -> None:
        """Call a function on the loop, if it is running."""
        with self._lock:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(call)

    def find_blocking_call(self) -> FrameType | None:
        """Return the frame of the call that blocks the loop; None if none does, or if it was returned before.

        A thread that waits for tasks calls this now and then.
        """
        with self._lock:
            now = time.monotonic()
            if self._loop is None or self._thread is None or self._thread.ident is None:
                return None
            if self._asked_at is None:
                self._asked_at, self._is_reported = now, False
                self._loop.call_soon_threadsafe(self._respond)
            elif not self._is_reported and now - self._asked_at >= self._blocked_seconds:
                self._is_reported = True
                return sys._current_frames().get(self._thread.ident)
            return None

    def stop(self) -> None:
        """Cancel the tasks of the loop, wait for their end for a limited time, and close the loop."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = self._asked_at = None
            if loop is not None:
                loop.call_soon_threadsafe(loop.stop)
        if thread is not None and thread is not threading.current_thread():
            thread.join(STOP_SECONDS + 1)

    def _start(self) -> None:
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=_run, args=(loop,), name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no memory for one more thread
            loop.close()
            raise
        self._loop, self._thread = loop, thread

    def _respond(self) -> None:
        self._asked_at = None


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        _cancel_tasks(loop)
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def _cancel_tasks(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_until_complete(asyncio.sleep(0))  # creates the tasks that were asked for before the loop was stopped
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=STOP_SECONDS))
    loop.run_until_complete(loop.shutdown_asyncgens())


# The loop of this process.
event_loop = EventLoopThread("outbox-event-loop")
os.register_at_fork(after_in_child=event_loop.forget)
atexit.register(event_loop.stop)
