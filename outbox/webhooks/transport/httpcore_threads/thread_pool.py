"""Send requests in as many threads as a receiver's response time needs.

Threads of one process take turns in the interpreter: with a receiver that responds immediately, several of them only
delay each other, while a slow receiver needs all of them. So a pool begins with one thread, and adds another whenever
no result has come for a moment.
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
        before the next request is taken, because the caller may decide after it to give no more requests.
        """
        in_flight = 0
        more = room = True
        try:
            while True:
                if more and room:
                    taken = next(requests, None)
                    if taken is None:
                        more = False
                    else:
                        self._hand_over(taken, in_flight)
                        in_flight += 1
                if in_flight == 0:
                    break
                may_grow = more and len(self._threads) < self._most
                try:
                    result = self._results.get(timeout=GROW_AFTER_SECONDS if may_grow else LONGEST_BLOCK_SECONDS)
                except queue.Empty:
                    room = may_grow
                else:
                    in_flight -= 1
                    room = True
                    yield result
        finally:
            # A thread that is sending ends after that request. If the exchange was closed, its result is not used.
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
        """Send requests from the queue until there is a None. This is what each thread runs."""
        with self._borrow_connection() as connection:
            while (taken := self._requests.get()) is not None:
                key, request = taken
                began_at = time.monotonic()
                result = connection.send(request)
                self._response_times.record(time.monotonic() - began_at)
                self._results.put((key, result))
