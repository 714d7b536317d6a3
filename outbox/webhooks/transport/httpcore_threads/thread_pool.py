"""Send requests in as many threads as a receiver's response time needs.

Only one thread of a process at a time runs Python code. If a receiver responds immediately, several threads only delay
each other; if it is slow, all of them are needed. So a pool begins with one thread, and adds another one whenever no
result has come for GROW_AFTER_SECONDS.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from typing import Generic, TypeVar

from outbox.webhooks.transport.httpcore_threads.connection import Connection
from outbox.webhooks.transport.httpcore_threads.response_times import ResponseTimes
from outbox.webhooks.transport.interruptible import LONGEST_BLOCK_SECONDS
from outbox.webhooks.transport.protocol import NoResponse, SendResult, WebhookRequest

K = TypeVar("K")

# How long no result may come before another thread is started.
GROW_AFTER_SECONDS = 0.002


class ThreadPool(Generic[K]):
    """Threads with a connection each, for one exchange. `HttpcoreTransport` makes one when it needs threads."""

    def __init__(
        self,
        name: str,
        most: int,
        borrow_connection: Callable[[], AbstractContextManager[Connection]],
        response_times: ResponseTimes,
    ) -> None:
        self._name = name
        self._most = most
        self._borrow_connection = borrow_connection
        self._response_times = response_times
        self._threads: list[threading.Thread] = []
        self._requests: queue.SimpleQueue[tuple[K, WebhookRequest] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[tuple[K, SendResult]] = queue.SimpleQueue()

    def exchange(self, requests: Iterator[tuple[K, WebhookRequest]]) -> Generator[tuple[K, SendResult], None, None]:
        """Send all requests and yield their results. See `Transport.exchange`.

        A request is taken in the caller's thread, and only when a thread of the pool can send it. A result is yielded
        before the next request is taken, because the caller may decide after a result to give no more requests.
        """
        in_flight = 0
        has_more = can_send = True
        try:
            while True:
                if has_more and can_send:
                    taken = next(requests, None)
                    if taken is None:
                        has_more = False
                    else:
                        self._hand_over(taken, in_flight)
                        in_flight += 1
                if in_flight == 0:
                    break
                may_grow = has_more and len(self._threads) < self._most
                try:
                    result = self._results.get(timeout=GROW_AFTER_SECONDS if may_grow else LONGEST_BLOCK_SECONDS)
                except queue.Empty:
                    can_send = may_grow
                else:
                    in_flight -= 1
                    can_send = True
                    yield result
        finally:
            # Each thread ends when it gets None, after the request that it is sending. If the exchange was closed, the
            # result of that request is not used.
            for _ in self._threads:
                self._requests.put(None)
        for thread in self._threads:
            thread.join()

    def _hand_over(self, request: tuple[K, WebhookRequest], in_flight: int) -> None:
        """Give a request to a free thread, or to a new one if all of them are sending."""
        if in_flight == len(self._threads):
            thread = threading.Thread(target=self._send_requests, name=f"outbox-send-{self._name}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the process can't have more threads
                self._most = len(self._threads)
                if not self._threads:
                    self._results.put((request[0], NoResponse(f"not sent: {error}")))
                    return
            else:
                self._threads.append(thread)
        self._requests.put(request)

    def _send_requests(self) -> None:
        """Send requests from the queue until None comes. Each thread runs this method."""
        with self._borrow_connection() as connection:
            while (taken := self._requests.get()) is not None:
                key, request = taken
                began_at = time.monotonic()
                result = connection.send(request)
                self._response_times.record(time.monotonic() - began_at)
                self._results.put((key, result))
