"""Dramatiq's Redis broker with a consumer that gets a message within milliseconds, without polling.

Dramatiq's own consumer sleeps after each fetch that finds nothing, longer each time. This consumer blocks in Redis
until the queue has a message, and then fetches it as Dramatiq does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import redis
from dramatiq.broker import MessageProxy
from dramatiq.brokers.redis import RedisBroker, _RedisConsumer
from dramatiq.common import q_name
from dramatiq.errors import ConnectionClosed

from outbox.dramatiq.actor_names import is_outbox_actor
from outbox.dramatiq.middleware import BusyThreads, find_middleware
from outbox.settings import Settings
from outbox.storage.redis_client import RESPONSE_TIMEOUT, make_client

# How long one blocking call may take. A fetch, which is also Dramatiq's heartbeat, follows each call, so this must be
# much shorter than the heartbeat timeout. It may also delay the stop of a worker.
BLOCK_SECONDS = 1


@contextmanager
def lost_connections_as_closed() -> Iterator[None]:
    """Raise ConnectionClosed for a lost connection. On any other error Dramatiq would drop an acknowledgement."""
    try:
        yield
    except (redis.ConnectionError, redis.TimeoutError) as error:
        raise ConnectionClosed(error) from None


class OutboxRedisBroker(RedisBroker):
    """Dramatiq's Redis broker with short timeouts and a consumer that blocks in Redis.

    While all drains (deliveries of due events) that this process may run are running, it fetches no further wake-up, so
    that another worker can take it.
    """

    def __init__(self, settings: Settings, *, response_timeout: float = RESPONSE_TIMEOUT) -> None:
        assert settings.redis_url is not None  # noqa: S101  (for the type checker)
        client = make_client(settings.redis_url, response_timeout=response_timeout)
        super().__init__(client=client, namespace=settings.namespace)
        self._response_timeout = response_timeout
        self.outbox_queue = settings.queue
        self._drains = settings.drains
        self._url = settings.redis_url

    @property
    def consumer_class(self) -> type[WaitingConsumer]:
        return WaitingConsumer

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 5000) -> Any:
        # Fetch no more wake-ups than this process may run drains: another worker may be free for the next one.
        is_outbox = self.is_of_an_outbox(queue_name)
        return super().consume(queue_name, min(prefetch, self._drains) if is_outbox else prefetch, timeout)

    def is_of_an_outbox(self, queue_name: str) -> bool:
        """Return whether this is the queue of an outbox's wake-ups; the actors of a named outbox have its name."""
        name = q_name(queue_name)
        return name == self.outbox_queue or any(
            actor.queue_name == name and is_outbox_actor(actor.actor_name) for actor in self.actors.values()
        )

    def make_blocking_client(self) -> redis.Redis:
        """Return a client with a longer response timeout, for commands that block in Redis."""
        return make_client(self._url, response_timeout=BLOCK_SECONDS + self._response_timeout)


class WaitingConsumer(_RedisConsumer):
    """Waits in Redis until the queue has a message, and in the process until a thread is free."""

    def __init__(self, broker: OutboxRedisBroker, queue_name: str, prefetch: int, timeout: int) -> None:
        super().__init__(broker, queue_name, prefetch, timeout)
        self._max_outstanding = prefetch
        self._key = f"{broker.namespace}:{queue_name}"
        self._blocking_client = broker.make_blocking_client()
        self._busy_threads = find_middleware(broker, BusyThreads)
        self._freed_seen = self._busy_threads.freed
        self._is_outbox = broker.is_of_an_outbox(queue_name)

    def __next__(self) -> MessageProxy | None:
        with lost_connections_as_closed():
            if not self.message_cache and not self._wait():
                return None
            self.misses = 0  # after a miss Dramatiq would sleep, but this consumer has waited already
            if self._is_outbox:
                # Fetch only one wake-up: another idle worker may take the next one.
                self.prefetch = self.outstanding_message_count + 1
            message: MessageProxy | None = super().__next__()
            return message

    def _wait(self) -> bool:
        """Wait for a message and for a free thread; return whether to fetch now.

        The wait ends after BLOCK_SECONDS, so that the consumer's thread can be stopped.
        """
        changes = self._busy_threads.changes
        idle = self._has_idle_thread()
        # Under load, every thread that becomes free is busy again at once, so none is seen idle here. If a thread was
        # freed since the last fetch, fetch anyway: otherwise the other queues would take every free thread.
        was_freed = self._busy_threads.freed != self._freed_seen
        if self.outstanding_message_count >= self._max_outstanding or not (idle or was_freed):
            self._busy_threads.wait_for_change(changes, BLOCK_SECONDS)
            return False
        # BLMOVE blocks until the list has an element, then moves its first element to the place where it is: the list
        # does not change. If BLMOVE times out, fetch too, because a fetch is also the heartbeat.
        self._blocking_client.blmove(self._key, self._key, BLOCK_SECONDS, "LEFT", "LEFT")
        self._freed_seen = self._busy_threads.freed
        return not idle or self._has_idle_thread()

    def _has_idle_thread(self) -> bool:
        """Return whether a thread is free for a wake-up; if none is, another worker may take it.

        For other queues, return True: they are fetched without a free thread, as Dramatiq does.
        """
        return not self._is_outbox or self._busy_threads.has_idle_thread(self.queued_message_ids.copy())

    def ack(self, message: MessageProxy) -> None:
        with lost_connections_as_closed():
            super().ack(message)

    def nack(self, message: MessageProxy) -> None:
        with lost_connections_as_closed():
            super().nack(message)

    def requeue(self, messages: Iterable[MessageProxy]) -> None:
        with lost_connections_as_closed():
            super().requeue(messages)

    def close(self) -> None:
        self._blocking_client.close()
        super().close()
