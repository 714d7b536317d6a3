"""Jobs on RabbitMQ: a transactional broker, its own workers beside outbox workers, and a server that is killed."""

import sys
import threading
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import dramatiq
import pytest
from dramatiq.brokers.rabbitmq import RabbitmqBroker

import outbox
from outbox.core import Outbox
from outbox.storage.models import OutboxEvent
from tests.rabbitmq.conftest import MakeShop, Shop
from tests.rabbitmq.queues import HOUR, consumers_and_messages
from tests.rabbitmq.server import RabbitmqServer
from tests.support.processes import BIN, Program
from tests.support.servers import wait_until
from tests.support.table import let_pass

APP = "tests.rabbitmq.jobs"
UNDECIDED_SECONDS = 1.0


def own_worker(shop: Shop) -> Program:
    return shop.start("own-worker", BIN / "dramatiq", APP, "-p", "1", "-t", "2", ready="ready for action")


def outbox_worker(shop: Shop) -> Program:
    options = ("-Q", shop.settings.queue, "-p", "1", "-t", "2")
    return shop.start("outbox-worker", BIN / "outbox", "worker", APP, *options, ready="ready for action")


def run(shop: Shop, *command: str) -> None:
    program = shop.start("web", sys.executable, "-m", *command)
    assert program.wait() == 0, program.said()


def ran(shop: Shop) -> list[int]:
    return [entry.id.int for entry in shop.entries("ran")]


def test_a_worker_of_the_application_that_sends_jobs_does_not_consume_the_outboxs_queue(
    make_shop: MakeShop, rabbitmq: RabbitmqServer
) -> None:
    shop = make_shop(sweep_seconds=HOUR)
    own_worker(shop)
    run(shop, "tests.rabbitmq.place_jobs", "50")
    queue = shop.settings.queue
    shop.wait_for(lambda: len(shop.rows("id")) == 50, "its actors have sent jobs")
    shop.wait_for(lambda: consumers_and_messages(rabbitmq, queue)[1] > 0, "a wake-up is waiting")
    assert consumers_and_messages(rabbitmq, queue)[0] == 0
    assert (shop.statuses(), ran(shop)) == ({"pending": 50}, [])

    outbox_worker(shop)
    shop.wait_until_all("delivered")
    shop.wait_for(lambda: len(ran(shop)) >= 50, "the application's worker runs them")
    assert sorted(ran(shop)) == list(range(50))


def test_while_rabbitmq_is_gone_jobs_wait_and_none_costs_an_attempt(
    make_shop: MakeShop, rabbitmq: RabbitmqServer
) -> None:
    shop = make_shop(sweep_seconds=0.5)
    shop.start("scheduler", BIN / "outbox", "scheduler", APP, ready="scheduler started")
    own_worker(shop)
    outbox_worker(shop)
    run(shop, APP, "0", "10")
    shop.wait_for(lambda: len(ran(shop)) >= 10, "jobs run")
    rabbitmq.kill()
    try:
        run(shop, APP, "10", "30")
        shop.wait_for(
            lambda: any(error for (error,) in shop.rows("error_message")), "a worker has tried to enqueue a job"
        )
        assert shop.statuses() == {"delivered": 10, "pending": 30}
    finally:
        rabbitmq.start()
    # After an outage, its circuit breaker may be open for a minute.
    assert wait_until(lambda: shop.statuses() == {"delivered": 40}, seconds=180)
    shop.wait_for(lambda: len(set(ran(shop))) >= 40, "all jobs have run")
    assert set(ran(shop)) == set(range(40))
    assert {attempts for (attempts,) in shop.rows("attempts")} == {1}


class TestConfirms:
    @pytest.fixture
    def url(self, sqlite_url: str) -> str:
        return sqlite_url

    @pytest.fixture
    def actor(self, box: Outbox, rabbitmq: RabbitmqServer) -> Iterator[dramatiq.Actor[[int], None]]:
        broker = outbox.transactional(RabbitmqBroker(url=rabbitmq.url), databases=[box.database])
        dramatiq.set_broker(broker)

        @dramatiq.actor(queue_name=f"confirmed-{uuid4()}")
        def work(number: int) -> None:
            pass

        yield work
        dramatiq.broker.global_broker = None

    def test_a_message_that_the_server_has_not_confirmed_is_not_delivered(
        self, box: Outbox, rabbitmq: RabbitmqServer, actor: Any
    ) -> None:
        def send_and_deliver(number: int) -> None:
            with box.database.atomic():
                actor.send(number)
            box.process_pending_events()
            box.database.close()

        send_and_deliver(1)  # the connection is open from here on
        rabbitmq.pause()
        delivering = threading.Thread(target=send_and_deliver, args=(2,))
        delivering.start()
        delivering.join(UNDECIDED_SECONDS)  # the server is silent, so nothing happens that could be waited for
        rabbitmq.kill()
        delivering.join()
        statuses = [row.status for row in OutboxEvent.select().order_by(OutboxEvent.seq)]
        rabbitmq.start()
        assert statuses == ["delivered", "pending"]
        let_pass(hours=1)
        box.process_pending_events()
        assert consumers_and_messages(rabbitmq, actor.queue_name) == (0, 2)
