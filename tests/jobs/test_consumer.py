"""The Redis consumer waits instead of polling, and says so in Dramatiq's words when Redis is lost."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import dramatiq
import pytest
import redis
from dramatiq.errors import ConnectionClosed

from jobs import redis_broker
from jobs.redis_broker import OutboxRedisBroker, WaitingConsumer
from tests.conftest import Configure
from tests.jobs.conftest import close, make_broker
from tests.processes import MakeStage
from tests.servers import RedisServer, wait_until

QUEUE = "things"


def consume(broker: OutboxRedisBroker) -> WaitingConsumer:
    broker.declare_queue(QUEUE)
    consumer = broker.consume(QUEUE, prefetch=2, timeout=1000)
    assert isinstance(consumer, WaitingConsumer)
    return consumer


def enqueue(broker: OutboxRedisBroker) -> dramatiq.Message[None]:
    return broker.enqueue(dramatiq.Message(queue_name=QUEUE, actor_name="nobody", args=(), kwargs={}, options={}))


class TestWaiting:
    def test_a_message_ends_the_very_call_that_waits_for_it(self, broker: OutboxRedisBroker) -> None:
        consumer = consume(broker)

        def is_blocked() -> bool:
            return any("b" in client["flags"] for client in broker.client.client_list())

        def comes_back_with_a_message_sent_meanwhile() -> bool:
            answers: list[Any] = []
            call = threading.Thread(target=lambda: answers.append(next(consumer)))
            call.start()
            if wait_until(lambda: is_blocked() or not call.is_alive()) and call.is_alive():
                enqueue(broker)
            call.join()
            return answers[0] is not None

        # Unless this machine is so busy that the wait was over before the message was sent.
        assert wait_until(comes_back_with_a_message_sent_meanwhile)
        consumer.close()

    def test_without_a_message_ends_by_itself_so_that_a_worker_can_stop(self, broker: OutboxRedisBroker) -> None:
        consumer = consume(broker)
        assert next(consumer) is None
        consumer.close()

    def test_changes_nothing_in_the_queue(self, broker: OutboxRedisBroker) -> None:
        for _ in range(3):
            enqueue(broker)
        key = f"{broker.namespace}:{QUEUE}"
        before = broker.client.lrange(key, 0, -1)
        consumer = consume(broker)
        assert consumer._wait()
        assert broker.client.lrange(key, 0, -1) == before
        consumer.close()

    def test_messages_come_in_their_order_and_no_more_than_may_be_held(self, broker: OutboxRedisBroker) -> None:
        sent = [enqueue(broker) for _ in range(3)]
        consumer = consume(broker)
        got = [next(consumer) for _ in range(2)]
        assert [message and message.message_id for message in got] == [message.message_id for message in sent[:2]]
        assert broker.client.llen(f"{broker.namespace}:{QUEUE}") == 1
        consumer.close()

    def test_an_idle_worker_asks_about_once_a_second_and_queue(
        self, make_stage: MakeStage, own_redis: RedisServer
    ) -> None:
        stage = make_stage(redis_url=own_redis.url)
        stage.worker()
        with redis.Redis.from_url(own_redis.url) as client:

            def calls(command: str) -> int:
                stats = client.info("commandstats")
                return int(stats.get(f"cmdstat_{command}", {"calls": 0})["calls"])

            stage.wait_for(lambda: calls("blmove") > 4, "the worker waits")
            before = {command: calls(command) for command in ("blmove", "evalsha")}
            began_at = time.monotonic()
            # Two queues, the outbox's own and its delayed one, give up after a second.
            stage.wait_for(lambda: calls("blmove") >= before["blmove"] + 6, "it has waited three times more")
            assert time.monotonic() - began_at > 1
            assert calls("evalsha") - before["evalsha"] <= 12


class TestAUsersQueue:
    @pytest.mark.parametrize("delay", [None, 50], ids=["at once", "delayed"])
    def test_works_as_before(self, broker: OutboxRedisBroker, configure: Configure, delay: int | None) -> None:
        configure().registry.ignore("*")
        done = threading.Event()

        @dramatiq.actor(broker=broker, queue_name=QUEUE)
        def thing() -> None:
            done.set()

        worker = dramatiq.Worker(broker, worker_threads=1)
        worker.start()
        thing.send_with_options(delay=delay)
        assert done.wait(60)
        worker.stop()


class TestALostRedis:
    @pytest.fixture
    def broker(self, own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[OutboxRedisBroker]:
        """One that loses patience soon."""
        monkeypatch.setattr(redis_broker, "ANSWER_TIMEOUT", 0.2)
        broker = make_broker(own_redis.url)
        broker.client.connection_pool.connection_kwargs["socket_timeout"] = 0.2
        yield broker
        close(broker)

    @pytest.mark.parametrize(
        ("lose", "find"),
        [(RedisServer.kill, RedisServer.start), (RedisServer.pause, RedisServer.resume)],
        ids=["killed", "paused"],
    )
    def test_is_a_closed_connection_and_another_consumer_goes_on(
        self,
        broker: OutboxRedisBroker,
        own_redis: RedisServer,
        lose: Callable[[RedisServer], None],
        find: Callable[[RedisServer], None],
    ) -> None:
        enqueue(broker)
        consumer = consume(broker)
        message = next(consumer)
        assert message is not None
        lose(own_redis)
        calls: list[Callable[[], object]] = [
            lambda: next(consumer),
            lambda: consumer.ack(message),
            lambda: consumer.nack(message),
            lambda: consumer.requeue([message]),
        ]
        for call in calls:
            with pytest.raises(ConnectionClosed):
                call()
        consumer.close()
        find(own_redis)
        again = consume(broker)
        enqueue(broker)
        assert wait_until(lambda: next(again) is not None)
        again.close()
