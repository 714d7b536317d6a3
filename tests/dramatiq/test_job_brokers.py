"""A job reaches the broker that its actor was sent through, or waits: never another broker, where it would be lost."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary

import dramatiq
import pytest
from dramatiq.brokers.redis import RedisBroker
from dramatiq.brokers.stub import StubBroker

import outbox
from outbox.core import Outbox
from outbox.dramatiq import known_brokers
from outbox.storage.models import OutboxEvent
from tests.conftest import Configure
from tests.support.servers import Redis

Actor = dramatiq.Actor[..., Any]


@pytest.fixture
def url(sqlite_url: str) -> str:
    return sqlite_url


@pytest.fixture(autouse=True)
def no_broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(known_brokers, "_named", WeakKeyDictionary())
    dramatiq.broker.global_broker = None
    yield
    dramatiq.broker.global_broker = None


def declare(broker: dramatiq.Broker, name: str = "charge") -> Actor:
    return dramatiq.actor(broker=broker, actor_name=name)(lambda *arguments: None)


def queued(broker: StubBroker) -> int:
    return int(broker.queues["default"].qsize())


def the_job() -> tuple[str, int]:
    row = OutboxEvent.get()
    return row.status, row.attempts


class TestSeveralBrokers:
    def test_an_actor_of_the_same_name_on_the_global_broker_does_not_take_the_job(self, box: Outbox) -> None:
        main, other = StubBroker(), StubBroker()
        dramatiq.set_broker(main)
        outbox.transactional(other, databases=[box.database])
        declare(main)
        charge = declare(other)
        with box.database.atomic():
            outbox.send(charge, 1)
        box.process_pending_events()
        assert (queued(main), queued(other)) == (0, 1)

    def test_two_brokers_with_the_same_namespace_do_not_take_each_others_jobs(self, box: Outbox) -> None:
        first, second = StubBroker(), StubBroker()
        dramatiq.set_broker(StubBroker())
        for broker in (first, second):
            outbox.transactional(broker, databases=[box.database])
        with box.database.atomic():
            outbox.send(declare(first, "charge"), 1)
            outbox.send(declare(second, "remind"), 1)
        box.process_pending_events()
        assert (queued(first), queued(second)) == (1, 1)

    @pytest.mark.parametrize("chosen", [0, 1])
    def test_of_two_that_have_an_actor_of_the_name_the_namespace_decides(
        self, box: Outbox, redis_server: Redis, chosen: int
    ) -> None:
        dramatiq.set_broker(StubBroker())
        brokers = [RedisBroker(url=redis_server.url, namespace=f"{name}-{uuid4()}") for name in ("acme", "globex")]
        for broker in brokers:
            outbox.transactional(broker, databases=[box.database])
        actors = [declare(broker) for broker in brokers]
        with box.database.atomic():
            outbox.send(actors[chosen], 1)
        box.process_pending_events()
        lengths = [broker.client.llen(f"{broker.namespace}:default") for broker in brokers]
        assert lengths == [int(chosen == 0), int(chosen == 1)]

    def test_a_broker_that_is_global_only_where_the_actor_runs_takes_the_job(self, box: Outbox) -> None:
        broker = outbox.transactional(StubBroker(), databases=[box.database])
        charge = declare(broker)
        with box.database.atomic():
            charge.send(1)
        dramatiq.set_broker(broker)
        box.process_pending_events()
        assert queued(broker) == 1


class TestAWorkerWithoutTheApplicationsBroker:
    """It has a broker that was made from OUTBOX_REDIS_URL: the job is enqueued there only if that is the same one."""

    @pytest.fixture
    def settings(self, redis_server: Redis) -> dict[str, str]:
        return {"redis_url": redis_server.url, "namespace": "settings"}

    def send_through(self, box: Outbox, broker: dramatiq.Broker) -> None:
        dramatiq.set_broker(broker)
        charge = declare(broker)
        with box.database.atomic():
            outbox.send(charge, 1)
        broker.actors.clear()

    def test_leaves_it_to_one_that_has_the_broker(self, configure: Configure, settings: dict[str, str]) -> None:
        own = StubBroker()  # RabbitMQ, say
        box = configure()
        self.send_through(box, own)
        dramatiq.broker.global_broker = None
        configure(**settings).process_pending_events()
        assert the_job() == ("pending", 0)
        dramatiq.set_broker(own)
        OutboxEvent.update(next_attempt_at=OutboxEvent.created_at).execute()
        configure().process_pending_events()
        assert the_job() == ("delivered", 1)
        assert queued(own) == 1

    @pytest.mark.parametrize(("namespace", "ends"), [("settings", ("delivered", 1)), ("shop", ("pending", 0))])
    def test_enqueues_it_if_the_settings_name_the_same_redis_and_namespace(
        self, configure: Configure, settings: dict[str, str], redis_server: Redis, namespace: str, ends: Any
    ) -> None:
        box = configure(**settings)
        self.send_through(box, RedisBroker(url=redis_server.url, namespace=namespace))
        dramatiq.broker.global_broker = None
        configure(**settings).process_pending_events()
        assert the_job() == ends

    def test_that_names_two_redis_servers_burns_no_attempt(
        self, configure: Configure, settings: dict[str, str], redis_server: Redis
    ) -> None:
        box = configure(**settings)
        self.send_through(box, RedisBroker(url=redis_server.url, namespace="settings"))
        dramatiq.set_broker(RedisBroker(url=redis_server.url, namespace="another"))
        configure(**settings).process_pending_events()
        assert the_job() == ("pending", 0)
        assert "OUTBOX_NAMESPACE" in str(OutboxEvent.get().error_message)
