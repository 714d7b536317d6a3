"""Wake-ups directly from Redis: a listening worker gets each one, and emitters rely on it only while it listens."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import dramatiq
import peewee
import pytest
import redis
from dramatiq.brokers.redis import RedisBroker

import outbox
from outbox.core import Outbox
from outbox.delivery.drain_thread import DrainThread
from outbox.dramatiq.middleware import Lifecycle
from outbox.dramatiq.redis_broker import OutboxRedisBroker
from outbox.dramatiq.wakeup_flag import RedisFlag, listening_key, wakeup_key
from outbox.dramatiq.wakeup_listener import MARK_MILLISECONDS, WakeupListener
from tests.conftest import Configure
from tests.dramatiq.conftest import close, make_broker
from tests.support.servers import RedisServer, wait_until

QUEUE = "outbox"


class Listening:
    """A listener of the test's own process, whose drains the test sees."""

    def __init__(self, box: Outbox, broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.box, self.broker, self.client = box, broker, broker.client
        self.queue_key = f"{broker.namespace}:{QUEUE}"
        self.flag = RedisFlag(broker.client, self.queue_key)
        self.drains = 0
        self.on_drain: Callable[[], object] = lambda: None
        monkeypatch.setattr(box, "drain", self._drain)
        self.listener = WakeupListener(box, broker, retry_seconds=0.01)
        self.longest_block, self.listener._block_seconds = self.listener._block_seconds, 0.05  # so that it ends soon

    def _drain(self, _: DrainThread) -> None:
        self.drains += 1
        self.on_drain()

    def start(self) -> None:
        """Start it, and wait until emitters know of it."""
        self.listener.start()
        assert wait_until(self.is_known)

    def is_known(self) -> bool:
        return bool(self.client.exists(listening_key(self.queue_key)))

    def waiting(self) -> int:
        return int(self.client.llen(wakeup_key(self.queue_key)))

    def end(self) -> None:
        self.listener.stop()
        self.listener.join(60)
        assert wait_until(lambda: not any(thread.is_alive() for thread in self.listener._threads))


@pytest.fixture
def box(configure: Configure) -> Outbox:
    return configure(drains=2)


@pytest.fixture
def listening(box: Outbox, broker: OutboxRedisBroker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Listening]:
    listening = Listening(box, broker, monkeypatch)
    yield listening
    listening.end()


class TestAnEmitter:
    def test_notifies_a_listening_worker_once_for_many_commits_and_sends_no_message(self, listening: Listening) -> None:
        listening.client.set(listening_key(listening.queue_key), 1)
        assert [listening.flag.try_set() for _ in range(3)] == [False] * 3
        assert listening.waiting() == 1

    def test_sends_a_message_while_no_worker_listens(self, listening: Listening) -> None:
        assert listening.flag.try_set()
        assert listening.waiting() == 0


class TestAListener:
    def test_drains_once_for_each_wake_up(self, listening: Listening) -> None:
        listening.start()
        for number in range(1, 4):
            assert not listening.flag.try_set()
            assert wait_until(lambda number=number: listening.drains == number)  # type: ignore[misc]
        assert listening.waiting() == 0

    def test_takes_a_wake_up_before_it_claims_so_that_a_later_commit_is_another(self, listening: Listening) -> None:
        found: list[int] = []
        listening.on_drain = lambda: found.append(listening.waiting())
        listening.start()
        listening.flag.try_set()
        assert wait_until(lambda: found == [0])

    def test_counts_for_some_seconds_after_its_process_was_killed(self, listening: Listening) -> None:
        listening.start()
        assert 0 < listening.client.pttl(listening_key(listening.queue_key)) <= MARK_MILLISECONDS

    def test_leaves_wake_ups_to_other_workers_while_all_drains_of_its_process_are_running(
        self, listening: Listening, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        limit, asked, is_free = listening.box.delivery.drain_limit, threading.Semaphore(0), threading.Event()

        def wait_for_slot(seconds: float) -> bool:
            asked.release()
            return is_free.wait(0.01)

        monkeypatch.setattr(limit, "wait_for_slot", wait_for_slot)
        listening.client.set(listening_key(listening.queue_key), 1)
        listening.flag.try_set()
        listening.listener.start()
        for _ in range(3):
            assert asked.acquire(timeout=60)
        assert (listening.waiting(), listening.drains) == (1, 0)
        is_free.set()
        assert wait_until(lambda: listening.drains == 1)

    def test_tries_again_at_once_if_the_connection_was_lost_while_it_waited(self, listening: Listening) -> None:
        def lose_first() -> None:
            if listening.drains == 1:
                raise peewee.OperationalError("server closed the connection unexpectedly")

        listening.on_drain = lose_first
        listening.start()
        listening.flag.try_set()
        assert wait_until(lambda: listening.drains == 2)

    def test_survives_any_error(self, listening: Listening, caplog: pytest.LogCaptureFixture) -> None:
        def fail() -> None:
            raise RuntimeError("out of luck")

        listening.on_drain = fail
        listening.start()
        for number in (1, 2):
            listening.flag.try_set()
            assert wait_until(lambda number=number: listening.drains == number)  # type: ignore[misc]
        assert wait_until(lambda: "Could not claim due events: out of luck." in caplog.text)

    def test_keeps_a_connection_open_while_it_waits_and_none_afterwards(self, listening: Listening) -> None:
        opened: list[bool] = []
        listening.on_drain = lambda: opened.append(not listening.box.database.is_closed())
        listening.start()
        listening.flag.try_set()
        assert wait_until(lambda: opened == [True])

    def test_passes_a_wake_up_on_if_it_stops_meanwhile(
        self, listening: Listening, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        passed_on = threading.Event()
        monkeypatch.setattr(listening.box.notifier, "notify", passed_on.set)
        listening.on_drain = listening.listener.stop
        listening.start()
        listening.flag.try_set()
        assert passed_on.wait(60)

    def test_gets_what_a_real_emitter_has_committed(
        self, configure: Configure, broker: OutboxRedisBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        box = configure()
        seen = threading.Event()
        outbox.handler("*")(lambda event: seen.set())
        listener = WakeupListener(box, broker)
        listener.start()
        key = f"{broker.namespace}:{QUEUE}"
        assert wait_until(lambda: bool(broker.client.exists(listening_key(key))))
        with box.database.atomic():
            outbox.emit("Order", 1, "order.placed")
        assert not RedisFlag(broker.client, key).try_set()
        assert seen.wait(60)
        listener.stop()
        listener.join(60)


class TestWhereRedisDoesNotLetItWait:
    def test_emitters_do_not_rely_on_it(
        self, box: Outbox, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        with RedisServer() as server:
            with redis.Redis.from_url(server.url) as admin:
                admin.execute_command("ACL", "SETUSER", "default", "-blpop")
            broker = make_broker(server.url)
            listening = Listening(box, broker, monkeypatch)
            listening.listener.start()
            assert wait_until(lambda: "Could not wait for wake-ups in Redis" in caplog.text)
            assert not listening.is_known()
            assert listening.flag.try_set()
            listening.end()
            close(broker)


class TestABrokerOfTheApplication:
    def test_has_its_client_used_for_less_than_its_timeout(
        self, box: Outbox, broker: OutboxRedisBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        url = broker._url
        own = RedisBroker(client=redis.Redis.from_url(url, socket_timeout=0.5), namespace=broker.namespace)
        listening = Listening(box, own, monkeypatch)
        assert listening.longest_block == 0.25
        listening.start()
        listening.flag.try_set()
        assert wait_until(lambda: listening.drains == 1)
        listening.end()
        assert own.client.ping()  # it is still the application's
        own.client.close()


def test_an_outbox_worker_on_redis_listens_for_as_long_as_it_runs(box: Outbox, broker: OutboxRedisBroker) -> None:
    outbox.ignore("*")
    broker.add_middleware(Lifecycle(lambda _: None))
    worker = dramatiq.Worker(broker, worker_threads=1)
    worker.start()
    assert len(listeners()) == box.settings.drains
    worker.stop()
    assert wait_until(lambda: listeners() == [])


def listeners() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("outbox-wakeup")]
