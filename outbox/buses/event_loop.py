"""Run an asyncio event loop in a thread, for client libraries that need one.

The loop keeps running between two calls, so that heartbeats are sent and a lost connection is noticed.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

# How long `stop` waits for the thread. A callback that never returns must not keep a process from ending.
STOP_SECONDS = 2.0


class EventLoop:
    """An event loop in a daemon thread of its own. The thread runs from the creation of the object until `stop`."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            with contextlib.suppress(Exception):
                _cancel_all(self.loop)
            self.loop.close()

    def run(self, coroutine: Coroutine[Any, Any, T], seconds: float) -> T:
        """Run the coroutine in the loop, and return its result. After `seconds` cancel it, and raise TimeoutError."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result(seconds)
        except TimeoutError:
            raise TimeoutError(f"no result within {seconds:.3g} s") from None
        finally:
            future.cancel()

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """Let the loop call the function soon; do nothing if the loop has stopped."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(function, *arguments)

    def stop(self) -> None:
        """Stop the loop, and end its thread."""
        self.call(self.loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join(STOP_SECONDS)


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=STOP_SECONDS / 2))
    loop.run_until_complete(asyncio.sleep(0))  # libraries close sockets in callbacks
