"""The Redis consumer blocks instead of polling, and raises Dramatiq's ConnectionClosed when Redis is lost."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import dramatiq
import pytest
import redis
from dramatiq.errors import ConnectionClosed

from outbox.dramatiq.middleware import BusyThreads, find_middleware
from outbox.dramatiq.redis_broker import OutboxRedisBroker, WaitingConsumer
from tests.conftest import Configure
from tests.dramatiq.conftest import close, make_broker
from tests.support.processes import MakeStage
from tests.support.servers import RedisServer, wait_until

QUEUE = "things"


def consume(broker: OutboxRedisBroker, queue: str = QUEUE) -> WaitingConsumer:
    broker.declare_queue(queue)
    consumer = broker.consume(queue, prefetch=2, timeout=1000)
    assert isinstance(consumer, WaitingConsumer)
    return consumer


def enqueue(broker: OutboxRedisBroker, queue: str = QUEUE) -> dramatiq.Message[None]:
    return broker.enqueue(dramatiq.Message(queue_name=queue, actor_name="nobody", args=(), kwargs={}, options={}))


def next_during(broker: OutboxRedisBroker, consumer: WaitingConsumer, act: Callable[[], object]) -> Any:
    """Call `next(consumer)` in a thread, call `act` while it blocks in Redis, and return what `next` returned."""
    answers: list[Any] = []
    call = threading.Thread(target=lambda: answers.append(next(consumer)))
    call.start()

    def is_blocked() -> bool:
        return any("b" in client["flags"] for client in broker.client.client_list())

    wait_until(lambda: is_blocked() or not call.is_alive())
    act()
    call.join()
    return answers[0]


class TestWaiting:
    def test_a_message_ends_the_very_call_that_waits_for_it(self, broker: OutboxRedisBroker) -> None:
        consumer = consume(broker)
        # Unless this machine is so busy that the wait was over before the message was sent.
        assert wait_until(lambda: next_during(broker, consumer, lambda: enqueue(broker)) is not None)
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


class TestTheOutboxsQueue:
    """A wake-up is fetched only if a thread of this process is free. Otherwise another worker can take it."""

    @pytest.fixture
    def busy_threads(self, broker: OutboxRedisBroker) -> BusyThreads:
        """Return the BusyThreads of a worker that has one thread, the test's."""
        busy_threads = find_middleware(broker, BusyThreads)
        busy_threads.before_worker_boot(broker, dramatiq.Worker(broker, worker_threads=1))
        return busy_threads

    @pytest.fixture
    def consumer(self, broker: OutboxRedisBroker) -> Iterator[WaitingConsumer]:
        consumer = consume(broker, "outbox")
        yield consumer
        consumer.close()

    def test_is_fetched_from_one_at_a_time(self, broker: OutboxRedisBroker, consumer: WaitingConsumer) -> None:
        find_middleware(broker, BusyThreads).before_worker_boot(broker, dramatiq.Worker(broker, worker_threads=2))
        sent = [enqueue(broker, "outbox") for _ in range(3)]
        for number in (1, 2):
            message = next(consumer)
            assert message is not None
            assert message.message_id == sent[number - 1].message_id
            assert waiting(broker) == 3 - number
        assert next(consumer) is None

    def test_is_left_alone_while_a_message_is_yet_to_be_begun(
        self, broker: OutboxRedisBroker, consumer: WaitingConsumer, busy_threads: BusyThreads
    ) -> None:
        for _ in range(2):
            enqueue(broker, "outbox")
        message = next(consumer)
        assert message is not None
        assert next(consumer) is None
        busy_threads.before_process_message(broker, message)
        assert next(consumer) is None
        busy_threads.after_process_message(broker, message)
        consumer.ack(message)
        assert next(consumer) is not None

    def test_is_left_alone_if_the_thread_became_busy_while_we_waited(
        self, broker: OutboxRedisBroker, consumer: WaitingConsumer, busy_threads: BusyThreads
    ) -> None:
        def become_busy_and_enqueue() -> None:
            busy_threads.before_process_message(broker, enqueue(broker))
            enqueue(broker, "outbox")

        assert next_during(broker, consumer, become_busy_and_enqueue) is None
        assert waiting(broker) == 1

    def test_has_its_share_when_threads_are_never_seen_idle(
        self, broker: OutboxRedisBroker, consumer: WaitingConsumer, busy_threads: BusyThreads
    ) -> None:
        theirs = enqueue(broker)
        busy_threads.before_process_message(broker, theirs)
        enqueue(broker, "outbox")
        assert next(consumer) is None
        busy_threads.after_process_message(broker, theirs)
        busy_threads.before_process_message(broker, enqueue(broker))
        assert next(consumer) is not None

    def test_wakes_its_consumer_when_a_thread_becomes_free(
        self, broker: OutboxRedisBroker, consumer: WaitingConsumer, busy_threads: BusyThreads
    ) -> None:
        theirs = enqueue(broker)
        busy_threads.before_process_message(broker, theirs)
        known = busy_threads.changes
        waiting = threading.Thread(target=busy_threads.wait_for_change, args=(known, 600))
        waiting.start()
        busy_threads.after_process_message(broker, theirs)
        assert wait_until(lambda: not waiting.is_alive())
        assert next(consumer) is None  # an idle thread, and an empty queue


def waiting(broker: OutboxRedisBroker) -> int:
    return int(broker.client.llen(f"{broker.namespace}:outbox"))


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
    def broker(self, own_redis: RedisServer) -> Iterator[OutboxRedisBroker]:
        """Return a broker with short response timeouts."""
        broker = make_broker(own_redis.url, response_timeout=0.2)
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
