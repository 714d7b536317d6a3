"""With the database and one worker alive, everything committed is delivered: Redis and the scheduler make it faster."""

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import dramatiq
import pytest
import redis

from tests.support.processes import MakeStage, Stage
from tests.support.servers import RedisServer


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """A Redis that the test may break."""
    with RedisServer() as server:
        yield server


def refuse_writes(server: RedisServer) -> None:
    with redis.Redis.from_url(server.url) as client:
        client.config_set("maxmemory", 1)


def assert_delivered_once(stage: Stage, *events: UUID) -> None:
    stage.wait_until_all("delivered")
    assert sorted(stage.ended()) == sorted(events)


def total(stage: Stage, name: str) -> float:
    """Return the counts that all processes have published."""
    with stage.box.dialect.connection():
        found = stage.box.dialect.run("SELECT sum(value) FROM outbox_total WHERE name = %s", (name,)).fetchone()[0]
    return float(found or 0)


def broker_errors(stage: Stage) -> list[Any]:
    """Return what the workers report about their broker."""
    with stage.box.dialect.connection():
        found = stage.box.dialect.run("SELECT details->>'broker_error' FROM outbox_process WHERE kind = 'worker'")
        return [error for (error,) in found.fetchall()]


def test_a_redis_that_was_never_there(make_stage: MakeStage, own_redis: RedisServer) -> None:
    own_redis.kill()
    stage = make_stage(redis_url=own_redis.url)
    before = stage.emit(3)
    stage.worker()
    assert_delivered_once(stage, *before)
    after = stage.emit(3)
    assert_delivered_once(stage, *before, *after)


@pytest.mark.parametrize(
    "lose", [RedisServer.kill, RedisServer.pause, refuse_writes], ids=["killed", "hanging", "full"]
)
def test_a_redis_that_is_lost(
    make_stage: MakeStage, own_redis: RedisServer, lose: Callable[[RedisServer], None]
) -> None:
    """Several rounds: the worker goes on claiming by itself for as long as no message can reach it."""
    stage = make_stage(redis_url=own_redis.url)
    stage.scheduler()
    worker = stage.worker()
    events = stage.emit(1)
    assert_delivered_once(stage, *events)
    lose(own_redis)
    for _ in range(3):
        events += stage.emit(5)
        assert_delivered_once(stage, *events)
    assert worker.said().count("The broker can't be reached") == 1


def test_a_retry_comes_due_without_redis(make_stage: MakeStage, own_redis: RedisServer) -> None:
    own_redis.kill()
    stage = make_stage(redis_url=own_redis.url)
    stage.worker()
    events = stage.emit(1, do="fail", times=2)
    assert_delivered_once(stage, *events)


def test_no_scheduler_and_no_wake_up(make_stage: MakeStage) -> None:
    """Redis is there, and brings nothing: wake-ups were lost, and there are no sweeps."""
    stage = make_stage()
    stage.worker()
    events: list[UUID] = []
    for _ in range(3):
        events += stage.emit(2)
        assert_delivered_once(stage, *events)


def test_every_thread_of_the_worker_is_busy_with_other_actors(make_stage: MakeStage) -> None:
    stage = make_stage()
    stage.worker("tests.apps.actors", threads=1)
    busy: dramatiq.Message[None] = dramatiq.Message(
        queue_name="default", actor_name="work", args=(1, 3600), kwargs={}, options={}
    )
    stage.broker.enqueue(busy)
    stage.wait_for(lambda: stage.broker.client.llen(f"{stage.settings.namespace}:default") == 0, "the thread is busy")
    assert_delivered_once(stage, *stage.emit(2))


def test_a_worker_says_that_it_cannot_reach_its_broker_and_when_it_can_again(
    make_stage: MakeStage, own_redis: RedisServer
) -> None:
    stage = make_stage(redis_url=own_redis.url, publish_seconds=0.2)
    worker = stage.worker()
    own_redis.kill()
    stage.wait_for(lambda: any(broker_errors(stage)), "the worker publishes that it can't reach its broker")
    assert all("ConnectionError" in error for error in broker_errors(stage))
    own_redis.start()
    stage.wait_for(lambda: broker_errors(stage) == [None], "the worker publishes that it can")
    assert worker.said().count("The broker can be reached again") == 1


def test_while_sweeps_arrive_a_worker_begins_no_claim_by_itself(make_stage: MakeStage) -> None:
    """Each event is found by a sweep. Together they take longer than a worker waits for one."""
    stage = make_stage(sweep_seconds=2, publish_seconds=0.2)
    stage.scheduler()
    stage.worker()
    stage.emit(1)
    stage.wait_until_all("delivered")
    before = total(stage, "polls")  # it may have had to wait for the first
    for number in range(2, 7):
        stage.emit(1)
        stage.wait_for(lambda number=number: total(stage, "delivered") == number, "a sweep comes")  # type: ignore[misc]
    assert total(stage, "polls") == before
