"""The fallback store: without Redis each process decides by itself, and nothing is lost when Redis is back."""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from outbox.destinations.handler import Handler
from outbox.storage.redis_client import make_client
from outbox.throttle.delivery_mode import DeliveryMode
from outbox.throttle.destination_throttle import DestinationThrottle
from outbox.throttle.fallback_store import PAUSE_SECONDS, FallbackStore
from outbox.throttle.redis_store import RedisStore
from outbox.throttle.throttles import RESPONSE_TIMEOUT
from tests.support.flights import flights
from tests.support.servers import RedisServer
from tests.throttle.states import NAME, begin_call, count, look
from tests.throttle.worker import Clock

OWN, SHARED = "this process applies circuit breakers and limits to its own calls only", "are shared by all workers"


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


class Workers:
    """The fallback stores of two processes on a Redis that the test may break, and what they have logged."""

    def __init__(self, server: RedisServer, prefix: str, log: pytest.LogCaptureFixture) -> None:
        log.set_level(logging.INFO, logger="outbox")
        self.server = server
        self._log = log
        self.clients = [make_client(server.url, response_timeout=RESPONSE_TIMEOUT) for _ in range(2)]
        self.clock = Clock()
        self.a, self.b = (FallbackStore(RedisStore(client, prefix), self.clock) for client in self.clients)

    def said(self, what: str) -> int:
        return sum(what in message for message in self._log.messages)

    def end_pause(self) -> None:
        """Let the time pass for which the stores don't use Redis after a failure."""
        self.clock.now += PAUSE_SECONDS

    def pause_redis(self) -> None:
        """Pause Redis, and let both stores notice."""
        self.server.pause()
        for each in (self.a, self.b):
            each.update(NAME, look)


@pytest.fixture
def workers(own_redis: RedisServer, prefix: str, caplog: pytest.LogCaptureFixture) -> Iterator[Workers]:
    workers = Workers(own_redis, prefix, caplog)
    yield workers
    for client in workers.clients:
        client.close()


class TestWithoutRedis:
    @pytest.mark.parametrize("break_it", [RedisServer.kill, RedisServer.stop, RedisServer.pause])
    def test_each_process_decides_by_itself_and_logs_that_once(
        self, workers: Workers, break_it: Callable[[RedisServer], None]
    ) -> None:
        assert (workers.a.update(NAME, count), workers.b.update(NAME, count)) == (1, 2)
        break_it(workers.server)
        # What it had remembered was about all of them; its own begins empty.
        assert [workers.a.update(NAME, count) for _ in range(3)] == [1, 2, 3]
        assert workers.said(OWN) == 1
        assert [workers.b.update(NAME, count) for _ in range(2)] == [1, 2]
        assert (workers.said(OWN), workers.said(SHARED)) == (2, 0)

    @pytest.mark.parametrize("break_it", [RedisServer.stop, RedisServer.pause])
    def test_redis_is_not_used_again_for_a_while(
        self, workers: Workers, break_it: Callable[[RedisServer], None]
    ) -> None:
        workers.a.update(NAME, count)
        break_it(workers.server)
        workers.a.update(NAME, count)
        for seconds, asked in ((4.9, False), (0.2, True)):
            workers.clock.now += seconds
            with flights() as sent, connecting() as connects:
                workers.a.update(NAME, count)
            assert bool(sent or connects) == asked

    def test_the_state_is_shared_again_when_redis_is_back_and_that_is_logged_once(self, workers: Workers) -> None:
        workers.server.stop()
        for _ in range(3):
            workers.a.update(NAME, count)
            workers.end_pause()
        assert (workers.said(OWN), workers.said(SHARED)) == (1, 0)
        workers.server.start()
        assert [workers.a.update(NAME, count), workers.b.update(NAME, count)] == [1, 2]
        assert (workers.said(OWN), workers.said(SHARED)) == (1, 1)
        workers.server.stop()
        workers.a.update(NAME, count)
        assert workers.said(OWN) == 2

    def test_a_redis_that_hangs_delays_a_caller_for_a_moment_only(self, workers: Workers) -> None:
        workers.a.update(NAME, count)
        workers.server.pause()
        with flights() as sent, connecting() as connects:
            for _ in range(100):
                workers.a.update(NAME, count)
        assert 0 < len(sent) + len(connects) < 10  # the first update alone waits for an answer

    def test_a_redis_that_is_full_is_not_used(self, workers: Workers) -> None:
        with redis.Redis.from_url(workers.server.url) as client:
            client.config_set("maxmemory", "1")
        assert [workers.a.update(NAME, count) for _ in range(2)] == [1, 2]
        assert workers.said(OWN) == 1

    def test_a_text_that_is_not_a_state_does_no_harm(self, workers: Workers, prefix: str) -> None:
        workers.clients[0].set(prefix + NAME, "nonsense")
        assert workers.a.update(NAME, begin_call("me")).events == 1

    def test_an_error_in_a_decision_is_not_taken_for_a_broken_redis(self, workers: Workers) -> None:
        with pytest.raises(ZeroDivisionError):
            workers.a.update(NAME, lambda state, _: (state, 1 / 0))


class TestCallsWhileRedisGoesAndComes:
    """The destination allows one call at a time."""

    @pytest.fixture
    def throttles(self, workers: Workers) -> list[DestinationThrottle]:
        target = Handler(lambda _: None, ["*"], NAME, concurrency=1)
        return [DestinationThrottle(target, kept, max_batches=2, hold_seconds=330.0) for kept in (workers.a, workers.b)]

    def test_that_began_before_count_afterwards(self, workers: Workers, throttles: list[DestinationThrottle]) -> None:
        here, there = throttles
        call = here.admit(1, mode=DeliveryMode.DRAIN)
        workers.pause_redis()
        workers.server.resume()
        workers.end_pause()
        assert there.admit(1, mode=DeliveryMode.DRAIN).decision.limit_reached
        call.finish(1, 0.1)
        assert there.admit(1, mode=DeliveryMode.DRAIN).events == 1

    def test_that_ended_without_redis_do_not_count_when_it_is_back(
        self, workers: Workers, throttles: list[DestinationThrottle]
    ) -> None:
        here, there = throttles
        call = here.admit(1, mode=DeliveryMode.DRAIN)
        workers.pause_redis()
        call.finish(1, 0.1)
        workers.server.resume()
        workers.end_pause()
        again = here.admit(1, mode=DeliveryMode.DRAIN)
        assert again.events == 1
        again.finish(1, 0.1)
        assert there.admit(1, mode=DeliveryMode.DRAIN).events == 1

    def test_that_began_without_redis_and_ended_with_it_do_not_count_without_it(
        self, workers: Workers, throttles: list[DestinationThrottle]
    ) -> None:
        here, _ = throttles
        workers.pause_redis()
        call = here.admit(1, mode=DeliveryMode.DRAIN)
        assert call.events == 1
        workers.server.resume()
        workers.end_pause()
        call.finish(1, 0.1)
        workers.pause_redis()
        assert here.admit(1, mode=DeliveryMode.DRAIN).events == 1


class connecting:  # noqa: N801  (as `flights` is used)
    """Record every attempt to connect to Redis inside the block."""

    def __enter__(self) -> list[object]:
        self._seen: list[object] = []
        self._patch = pytest.MonkeyPatch()
        connect: Any = redis.connection.Connection.connect

        def note(connection: Any, *arguments: Any, **options: Any) -> Any:
            self._seen.append(connection)
            return connect(connection, *arguments, **options)

        self._patch.setattr(redis.connection.Connection, "connect", note)
        return self._seen

    def __exit__(self, *_: object) -> None:
        self._patch.undo()
