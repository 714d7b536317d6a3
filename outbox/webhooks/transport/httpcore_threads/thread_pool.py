"""As many threads as a receiver's slowness calls for.

Threads share one interpreter: with a receiver that answers at once, several only get in each other's way, while one
that takes its time needs them all. So there is one at first, and one more whenever nothing has come for a moment.
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
from outbox.webhooks.transport.protocol import NoResponse, SendResult, WebhookRequest

K = TypeVar("K")

PATIENCE_SECONDS = 0.002
# An interrupt reaches a thread only between two instructions: waiting is done in pieces.
PIECE_SECONDS = 0.5


class ThreadPool(Generic[K]):
    """Threads with a sender each, for one exchange."""

    def __init__(
        self, name: str, most: int, borrow: Callable[[], AbstractContextManager[Connection]], pace: ResponseTimes
    ) -> None:
        self._name = name
        self._most = most
        self._borrow = borrow
        self._pace = pace
        self._threads: list[threading.Thread] = []
        self._requests: queue.SimpleQueue[tuple[K, WebhookRequest] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[K, SendResult]] = queue.SimpleQueue()

    def exchange(self, requests: Iterator[tuple[K, WebhookRequest]]) -> Generator[tuple[K, SendResult], None, None]:
        """Requests are taken here, in the caller's thread, and only when there is a thread for them.

        An answer is handed out before the next request is taken: it may be what decides that there is no next one.
        """
        under_way = 0
        more = room = True
        try:
            while True:
                if more and room:
                    taken = next(requests, None)
                    if taken is None:
                        more = False
                    else:
                        self._hand_over(taken, under_way)
                        under_way += 1
                if under_way == 0:
                    break
                may_grow = more and len(self._threads) < self._most
                try:
                    answer = self._answers.get(timeout=PATIENCE_SECONDS if may_grow else PIECE_SECONDS)
                except queue.Empty:
                    room = may_grow
                else:
                    under_way -= 1
                    room = True
                    yield answer
        finally:
            # Those with a request end after it; nobody waits for what they still say.
            for _ in self._threads:
                self._requests.put(None)
        for thread in self._threads:
            thread.join()

    def _hand_over(self, request: tuple[K, WebhookRequest], under_way: int) -> None:
        if under_way == len(self._threads):
            thread = threading.Thread(target=self._work, name=f"outbox-send-{self._name}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # no room for one more
                self._most = len(self._threads)
                if not self._threads:
                    self._answers.put((request[0], NoResponse(f"not sent: {error}")))
                    return
            else:
                self._threads.append(thread)
        self._requests.put(request)

    def _work(self) -> None:
        with self._borrow() as sender:
            while (taken := self._requests.get()) is not None:
                key, request = taken
                began_at = time.monotonic()
                answer = sender.send(request)
                self._pace.note(time.monotonic() - began_at)
                self._answers.put((key, answer))
