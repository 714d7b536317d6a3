"""Redis as the broker: a message is picked up within milliseconds of being sent, without polling.

Dramatiq's own consumer sleeps between looks, longer and longer. Ours blocks in Redis until the queue has something,
and then fetches as usual.
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

from outbox.dramatiq.middleware import Occupancy, find
from outbox.settings import Settings
from outbox.storage.redis_client import ANSWER_TIMEOUT, make_client

# Well under Dramatiq's heartbeat, which every fetch renews; and how long a stop may take at most.
BLOCK_SECONDS = 1


@contextmanager
def lost_connections_as_closed() -> Iterator[None]:
    """redis-py's TimeoutError is not a ConnectionError, and Dramatiq drops an ack on anything but ConnectionClosed."""
    try:
        yield
    except (redis.ConnectionError, redis.TimeoutError) as error:
        raise ConnectionClosed(error) from None


def make_redis_broker(settings: Settings) -> OutboxRedisBroker:
    return OutboxRedisBroker(settings)


class OutboxRedisBroker(RedisBroker):
    """Dramatiq's Redis broker with short timeouts, and a consumer that waits.

    It leaves wake-ups to other workers while this one could not begin to claim for them.
    """

    def __init__(self, settings: Settings) -> None:
        assert settings.redis_url is not None  # noqa: S101  (for the type checker)
        super().__init__(client=make_client(settings.redis_url), namespace=settings.namespace)
        self.outbox_queue = settings.queue
        self._drains = settings.drains
        self._url = settings.redis_url

    @property
    def consumer_class(self) -> type[WaitingConsumer]:
        return WaitingConsumer

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 5000) -> Any:
        # While all drains of this process run, another worker may be free for the next wake-up.
        is_outbox = q_name(queue_name) == self.outbox_queue
        return super().consume(queue_name, min(prefetch, self._drains) if is_outbox else prefetch, timeout)

    def waiting_client(self) -> redis.Redis:
        """A client that may block: its answers take longer than the others' by design."""
        return make_client(self._url, answer_timeout=BLOCK_SECONDS + ANSWER_TIMEOUT)


class WaitingConsumer(_RedisConsumer):
    """Waits inside Redis for the queue to have a message, and inside the process for a thread to be free."""

    def __init__(self, broker: OutboxRedisBroker, queue_name: str, prefetch: int, timeout: int) -> None:
        super().__init__(broker, queue_name, prefetch, timeout)
        self._most = prefetch
        self._key = f"{broker.namespace}:{queue_name}"
        self._waiting_client = broker.waiting_client()
        self._occupancy = find(broker, Occupancy)
        self._freed_seen = self._occupancy.freed
        self._is_outbox = q_name(queue_name) == broker.outbox_queue

    def __next__(self) -> MessageProxy | None:
        with lost_connections_as_closed():
            if not self.message_cache and not self._wait():
                return None
            self.misses = 0  # after a wait there is no need to sleep as well
            if self._is_outbox:
                self.prefetch = self.outstanding_message_count + 1  # a fetch takes one, whoever else is idle the next
            message: MessageProxy | None = super().__next__()
            return message

    def _wait(self) -> bool:
        """Whether it makes sense to fetch now; gives up after a second, so that the thread can be stopped."""
        changes = self._occupancy.changes
        idle = self._has_idle_thread()
        # Under load no thread is ever seen idle; when one was free meanwhile, it is this queue's turn all the same.
        share = self._occupancy.freed != self._freed_seen
        if self.outstanding_message_count >= self._most or not (idle or share):
            self._occupancy.wait_for_change(changes, BLOCK_SECONDS)
            return False
        # Moves the head of the list onto itself, once there is one: changes nothing, and waits without polling. An
        # empty answer still leads to a fetch, which is also the heartbeat.
        self._waiting_client.blmove(self._key, self._key, BLOCK_SECONDS, "LEFT", "LEFT")
        self._freed_seen = self._occupancy.freed
        return not idle or self._has_idle_thread()

    def _has_idle_thread(self) -> bool:
        """A wake-up fetched while all threads are busy would sit here, and another worker may be idle."""
        return not self._is_outbox or self._occupancy.has_idle_thread(self.queued_message_ids.copy())

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
        self._waiting_client.close()
        super().close()
