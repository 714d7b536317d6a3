"""A Redis that is full, or not there at all: emitters don't notice, and all is delivered once."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import redis

import outbox
from outbox.core import Outbox
from outbox.settings import Settings
from tests.support.processes import Emitter, MakeStage, Stage, close_all
from tests.support.servers import RedisServer


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


def set_memory(server: RedisServer, limit: int) -> None:
    with redis.Redis.from_url(server.url) as client:
        client.config_set("maxmemory", limit)


def assert_all_came_once(stage: Stage, emitter: Emitter) -> None:
    """The emitter has noticed nothing, and whatever it has committed was delivered."""
    assert emitter.stop() == 0
    assert "Traceback" not in emitter.program.said()
    stage.wait_until_all("delivered")
    assert Counter(stage.ended()) == Counter(emitter.committed())


def test_out_of_memory_it_disturbs_no_emitter_and_all_is_delivered_once(
    make_stage: MakeStage, own_redis: RedisServer
) -> None:
    stage = make_stage(redis_url=own_redis.url)
    worker = stage.worker()
    stage.scheduler()
    emitter = Emitter(stage)
    stage.wait_for(lambda: len(stage.ended()) > 20, "events are delivered")
    set_memory(own_redis, 1)  # a byte: every write is refused from now on
    with redis.Redis.from_url(own_redis.url) as client, pytest.raises(redis.exceptions.OutOfMemoryError):
        client.set("anything", 1)
    emitter.wait_for_more(30)
    set_memory(own_redis, 0)
    emitter.wait_for_more(30)
    assert_all_came_once(stage, emitter)
    assert worker.running


def test_gone_before_anybody_came_it_is_waited_for_and_then_all_is_delivered_once(
    make_stage: MakeStage, own_redis: RedisServer
) -> None:
    own_redis.kill()
    stage = make_stage(redis_url=own_redis.url)
    scheduler = stage.scheduler()
    emitter = Emitter(stage)
    emitter.wait_for_more(30)
    own_redis.start()
    stage.worker()
    assert emitter.stop() == 0
    stage.wait_until_all("delivered")
    assert Counter(stage.ended()) == Counter(emitter.committed())
    assert scheduler.running


def test_gone_for_as_long_as_a_dozen_sweeps_it_disturbs_no_emitter_and_all_is_delivered_once(
    make_stage: MakeStage, own_redis: RedisServer
) -> None:
    """Two minutes, at the usual ten seconds from one sweep to the next."""
    stage = make_stage(redis_url=own_redis.url)
    worker, scheduler = stage.worker(), stage.scheduler()
    emitter = Emitter(stage)
    stage.wait_for(lambda: len(stage.ended()) > 20, "events are delivered")
    own_redis.kill()
    stage.wait_for(lambda: scheduler.said().count("sweep: could not enqueue") >= 12, "a dozen sweeps can't be sent")
    emitter.wait_for_more(30)
    stage.wait_for(lambda: set(emitter.committed()[-50:]) & set(stage.ended()) != set(), "deliveries go on meanwhile")
    own_redis.start()
    emitter.wait_for_more(30)
    assert_all_came_once(stage, emitter)
    assert worker.running
    assert scheduler.running


class TestAnEmitter:
    @pytest.fixture
    def statements(
        self, stage: Stage, own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[tuple[Outbox, list[str]]]:
        """An application that wakes workers, and the statements that it runs."""
        settings = Settings.load({}, database_url=stage.settings.database_url, redis_url=own_redis.url)
        box = Outbox(settings)
        said: list[str] = []
        execute: Any = box.database.execute_sql

        def listen(sql: str, *args: Any, **kwargs: Any) -> Any:
            said.append(" ".join(sql.split()))
            return execute(sql, *args, **kwargs)

        monkeypatch.setattr(box.database, "execute_sql", listen)
        yield box, said
        box.notifier.flush()
        close_all(box)

    def test_runs_the_same_statements_with_and_without_redis(
        self, statements: tuple[Outbox, list[str]], own_redis: RedisServer
    ) -> None:
        box, said = statements
        with_redis = self.emit(box, said)
        own_redis.pause()
        hung = self.emit(box, said)
        own_redis.kill()
        gone = self.emit(box, said)
        assert with_redis == hung == gone
        assert sum(statement.startswith("INSERT INTO outbox_event") for statement in with_redis) == 3

    @staticmethod
    def emit(box: Outbox, said: list[str]) -> list[str]:
        said.clear()
        with box.dialect.connection():
            for _ in range(3):
                with box.database.atomic():
                    box.emit("Thing", 1, "test.emitted", idempotency_key=outbox.UNIQUE)
        return said.copy()
