"""A consumer survives an outage of Redis and the loss of its group; what it processed before is not done twice."""

import logging
from collections.abc import Callable, Iterator

import pytest
import redis

import outbox
from outbox.events.event import Event
from tests.consumer.streams import MakeConsumer, Stream, consume, note, notes, running
from tests.support.servers import RedisServer
from tests.support.table import becomes_true


@pytest.fixture
def url(sqlite_url: str) -> str:
    """The database does not matter here: Redis is what fails."""
    return sqlite_url


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """A Redis server of the test's own, which it may break; its data survive that."""
    with RedisServer(appendonly="yes", appendfsync="always") as server:
        yield server


@pytest.fixture
def own_stream(own_redis: RedisServer, stream: Stream) -> Iterator[Stream]:
    with redis.Redis.from_url(own_redis.url) as client:
        yield Stream(client, stream.key)


@pytest.fixture
def consumer(
    make_consumer: MakeConsumer,
    own_redis: RedisServer,
    caplog: pytest.LogCaptureFixture,
) -> outbox.Consumer:
    """A consumer that tries Redis again soon."""
    caplog.set_level(logging.INFO, "outbox")
    return make_consumer({"source_retry_seconds": 0.05}, url=own_redis.url, timeout=0.5)


@pytest.fixture
def taken() -> None:
    """Register a handler that accepts every entry."""
    outbox.handler("note.*")(lambda event: note(event.payload["n"]))


@pytest.mark.usefixtures("taken")
class TestRedis:
    @pytest.mark.parametrize(
        "harm",
        [
            (RedisServer.kill, RedisServer.start),
            (RedisServer.stop, RedisServer.start),
            (RedisServer.pause, RedisServer.resume),
        ],
        ids=["killed", "restarted", "paused"],
    )
    def test_that_is_available_again_is_used_again(
        self,
        own_stream: Stream,
        own_redis: RedisServer,
        consumer: outbox.Consumer,
        caplog: pytest.LogCaptureFixture,
        harm: tuple[Callable[[RedisServer], None], Callable[[RedisServer], None]],
    ) -> None:
        break_it, mend_it = harm
        own_stream.add({"n": "before"})
        with running(consumer):
            becomes_true(lambda: notes() == ["before"] and own_stream.left() == 0)
            break_it(own_redis)
            becomes_true(lambda: "Redis is unavailable, trying again" in caplog.text)
            mend_it(own_redis)
            own_stream.add({"n": "after"})
            becomes_true(lambda: notes() == ["after", "before"])
            becomes_true(lambda: f"{own_stream.key}: Redis is available again" in caplog.messages)
        assert len([line for line in caplog.messages if "is unavailable, trying again" in line]) == 1

    def test_that_is_unavailable_at_the_end_does_not_delay_the_stop(
        self, own_redis: RedisServer, own_stream: Stream, consumer: outbox.Consumer, caplog: pytest.LogCaptureFixture
    ) -> None:
        with running(consumer):
            becomes_true(lambda: "consuming" in caplog.text)
            own_redis.kill()
        assert "could not say that it leaves" in caplog.text


def test_an_entry_that_was_committed_while_redis_died_is_skipped_later(
    own_redis: RedisServer, own_stream: Stream, consumer: outbox.Consumer
) -> None:
    own_stream.add()

    @outbox.handler("note.*")
    def kill_redis(event: Event) -> None:
        note("effect")
        own_redis.kill()

    with running(consumer):
        becomes_true(lambda: notes() == ["effect"])
        own_redis.start()
        becomes_true(lambda: own_stream.left() == 0)
    assert notes() == ["effect"]
    assert str(consumer.counts) == "1 processed, 1 skipped, 0 parked"


def refuse_writes(server: RedisServer, *, refuse: bool) -> None:
    with redis.Redis.from_url(server.url) as client:
        client.config_set("min-replicas-to-write", int(refuse))


def be_full(server: RedisServer, *, refuse: bool) -> None:
    with redis.Redis.from_url(server.url) as client:
        client.config_set("maxmemory", int(refuse))


@pytest.mark.parametrize(
    "harm",
    [(refuse_writes, "acknowledge"), (refuse_writes, "again"), (refuse_writes, "park"), (be_full, "park")],
    ids=lambda harm: f"{harm[0].__name__}-{harm[1]}",
)
def test_a_redis_that_refuses_writes_for_a_while_loses_nothing(
    own_redis: RedisServer,
    own_stream: Stream,
    consumer: outbox.Consumer,
    caplog: pytest.LogCaptureFixture,
    harm: tuple[Callable[..., None], str],
) -> None:
    harm_it, how = harm
    own_stream.add()
    calls: list[int] = []

    @outbox.handler("note.*")
    def handle(event: Event) -> None:
        calls.append(event.attempt)
        note("effect")
        if len(calls) == 1:
            harm_it(own_redis, refuse=True)
            if how == "again":
                raise ValueError("once")
        if how == "park":
            raise outbox.Reject("never")

    with running(consumer):
        becomes_true(lambda: "Redis is unavailable, trying again" in caplog.text)
        harm_it(own_redis, refuse=False)
        becomes_true(lambda: own_stream.left() == 0)
    assert (notes(), len(own_stream.parked())) == (([], 1) if how == "park" else (["effect"], 0))


@pytest.mark.usefixtures("taken")
class TestAGroupThatWasDeleted:
    def test_is_created_again_from_the_beginning_of_the_stream(
        self, own_stream: Stream, consumer: outbox.Consumer, caplog: pytest.LogCaptureFixture
    ) -> None:
        own_stream.add({"n": 1})
        with running(consumer):
            becomes_true(lambda: notes() == ["1"] and own_stream.left() == 0)
            own_stream.client.xgroup_destroy(own_stream.key, "outbox")
            own_stream.add({"n": 2})
            becomes_true(lambda: notes() == ["1", "2"] and own_stream.left() == 0)
        assert str(consumer.counts) == "3 processed, 1 skipped, 0 parked"
        assert f"{own_stream.key}: the consumer group outbox does not exist any more; creating it again" in caplog.text

    def test_together_with_the_stream_is_created_again(
        self, own_stream: Stream, consumer: outbox.Consumer, caplog: pytest.LogCaptureFixture
    ) -> None:
        own_stream.add({"n": 1})
        with running(consumer):
            becomes_true(lambda: notes() == ["1"])
            own_stream.client.flushall()
            becomes_true(lambda: "does not exist any more; creating it again" in caplog.text)
            own_stream.add({"n": 2})
            becomes_true(lambda: notes() == ["1", "2"] and own_stream.left() == 0)


@pytest.mark.parametrize("how", ["returns", "raises"])
def test_a_group_that_is_deleted_while_a_handler_runs_does_not_end_the_consumer(
    own_stream: Stream, consumer: outbox.Consumer, how: str
) -> None:
    own_stream.add({"n": 1})

    @outbox.handler("note.*")
    def flush(event: Event) -> None:
        note(event.payload["n"])
        if event.payload["n"] == 1:
            own_stream.client.flushall()
            if how == "raises":
                raise ValueError("once")

    with running(consumer):
        becomes_true(lambda: not own_stream.client.exists(own_stream.key) or own_stream.left() == 0)
        becomes_true(lambda: own_stream.client.exists(own_stream.key))
        own_stream.add({"n": 2})
        becomes_true(lambda: "2" in notes() and own_stream.left() == 0)
    assert notes() == (["1", "2"] if how == "returns" else ["2"])


def test_a_stream_that_becomes_something_else_ends_the_consumer(own_stream: Stream, consumer: outbox.Consumer) -> None:
    @outbox.handler("note.*")
    def replace(event: Event) -> None:
        own_stream.client.set(own_stream.key, "text")

    own_stream.add()
    with pytest.raises(outbox.SettingsError, match="Redis refuses a command: WRONGTYPE"):
        consume(consumer, until=lambda: own_stream.client.type(own_stream.key) == b"string")
