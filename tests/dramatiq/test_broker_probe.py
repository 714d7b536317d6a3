"""The probe tells within a short time whether the broker can be reached, even if the broker hangs."""

import uuid
from collections.abc import Callable
from typing import Any

import pytest
import redis
from dramatiq.brokers.redis import RedisBroker
from dramatiq.brokers.stub import StubBroker

from outbox.dramatiq.broker_probe import BrokerProbe
from tests.support.servers import Redis, RedisServer


def refuse_writes(server: RedisServer) -> None:
    with redis.Redis.from_url(server.url) as client:
        client.config_set("maxmemory", 1)


def allow_writes(server: RedisServer) -> None:
    with redis.Redis.from_url(server.url) as client:
        client.config_set("maxmemory", 0)


def probe_of(url: str) -> BrokerProbe:
    """Return a probe of Dramatiq's own Redis broker, with the client's default timeouts and retries."""
    return BrokerProbe(RedisBroker(url=url, namespace=f"test-{uuid.uuid4().hex}"), "outbox")


@pytest.mark.parametrize(
    ("lose", "find", "error"),
    [
        (RedisServer.kill, RedisServer.start, "ConnectionError"),
        (RedisServer.pause, RedisServer.resume, "no response within"),
        (refuse_writes, allow_writes, "OutOfMemoryError"),
    ],
    ids=["killed", "hanging", "full"],
)
def test_a_redis_that_is_lost_is_noticed_and_so_is_its_return(
    own_redis: RedisServer, lose: Callable[[RedisServer], None], find: Callable[[RedisServer], None], error: str
) -> None:
    probe = probe_of(own_redis.url)
    assert probe.find_error() is None
    lose(own_redis)
    assert error in str(probe.find_error())
    find(own_redis)
    assert any(probe.find_error() is None for _ in range(10))  # one that hung may have to be waited for


def test_it_leaves_nothing_in_the_queue(redis_server: Redis) -> None:
    broker = RedisBroker(url=redis_server.url, namespace=f"test-{uuid.uuid4().hex}")
    assert BrokerProbe(broker, "outbox").find_error() is None
    assert broker.client.llen(f"{broker.namespace}:outbox") == 0


def test_a_broker_inside_the_process_is_always_reached() -> None:
    assert BrokerProbe(StubBroker(), "outbox").find_error() is None


class ConnectsPerThread:
    """A broker that connects as Dramatiq's RabbitmqBroker does: once for each thread."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error
        self.calls: list[str] = []

    @property
    def connection(self) -> Any:
        self.calls.append("opened")
        if self._error is not None:
            raise self._error
        return object()

    @connection.deleter
    def connection(self) -> None:
        self.calls.append("closed")


def test_a_broker_with_a_connection_for_each_thread_is_connected_to_and_let_go() -> None:
    broker = ConnectsPerThread()
    assert BrokerProbe(broker, "outbox").find_error() is None
    assert broker.calls == ["opened", "closed"]


def test_a_broker_that_can_not_be_connected_to_is_not_reached() -> None:
    assert "refused" in str(BrokerProbe(ConnectsPerThread(ConnectionError("refused")), "outbox").find_error())
