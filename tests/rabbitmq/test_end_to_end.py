"""From a table, through RabbitMQ, to another service's table: exactly once, whatever is killed on the way.

OUTBOX_TEST_EVENTS=10000 makes it long.
"""

import os
import random
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import psycopg
import pytest

from tests.rabbitmq.queue import Queue
from tests.rabbitmq.server import RabbitmqServer
from tests.support.processes import BIN, MakeStage, Program, Stage, make_stage

__all__ = ["make_stage"]

EVENTS = int(os.environ.get("OUTBOX_TEST_EVENTS", "300"))
# Each kind of fault comes once in the short run.
ROUNDS = max(3, EVENTS // 500)


class Bus:
    """Workers that publish, consumers of the queue, and what can be killed."""

    def __init__(self, stage: Stage, server: RabbitmqServer, queue: Queue) -> None:
        self.stage, self._server, self._queue = stage, server, queue
        self._chance = random.Random(7)  # noqa: S311  (the same faults each time)
        stage.environment |= {"OUTBOX_TEST_BUS_URL": server.url, "OUTBOX_TEST_BUS_EXCHANGE": queue.name}
        stage.environment |= {"OUTBOX_CONSUME_URL": server.url}
        stage.scheduler()
        self.workers = [self.start_worker() for _ in range(2)]
        self.consumers = [self.start_consumer() for _ in range(2)]

    def start_worker(self) -> Program:
        return self.stage.worker("tests.rabbitmq.publisher")

    def start_consumer(self) -> Program:
        command = ("consume", self._queue.name, "tests.rabbitmq.books", "--idle-seconds", "0.5")
        return self.stage.start("consumer", BIN / "outbox", *command, ready="consuming")

    def replace(self, programs: list[Program], start: Callable[[], Program]) -> None:
        programs.pop(self._chance.randrange(len(programs))).kill()
        programs.append(start())

    def restart_server(self) -> None:
        self._server.kill()
        self._server.start()


@pytest.fixture
def url(postgres_url: str) -> str:
    return postgres_url


def test_every_event_has_one_effect_though_workers_consumers_and_the_broker_are_killed(
    make_stage: MakeStage, rabbitmq: RabbitmqServer, postgres_url: str
) -> None:
    queue = Queue(rabbitmq, "quorum", exchange="fanout")
    stage = make_stage(lease_seconds=2, backoff_base_seconds=0.2, backoff_cap_seconds=1, sweep_seconds=0.5)
    rows("CREATE TABLE book (event uuid NOT NULL)", postgres_url)
    bus = Bus(stage, rabbitmq, queue)
    ids = []
    for number in range(ROUNDS):
        ids += stage.emit(EVENTS // ROUNDS)
        stage.wait_for(partial(have_arrived, postgres_url, len(ids) // 4), "some have had their effect")
        match number % 3:
            case 0:
                bus.replace(bus.workers, bus.start_worker)
            case 1:
                bus.replace(bus.consumers, bus.start_consumer)
            case 2:
                bus.restart_server()
    stage.wait_until_all("delivered")
    stage.wait_for(partial(have_arrived, postgres_url, len(ids)), "every event has had its effect")
    for consumer in bus.consumers:
        consumer.signal(signal.SIGTERM)
        assert consumer.wait() == 0
    assert sorted(booked(postgres_url)) == sorted(ids)
    assert queue.parked() == []


def rows(statement: str, url: str) -> Any:
    with psycopg.connect(url) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else None


def have_arrived(url: str, number: int) -> bool:
    return len(booked(url)) >= number


def booked(url: str) -> list[Any]:
    return [event for (event,) in rows("SELECT event FROM book", url)]
