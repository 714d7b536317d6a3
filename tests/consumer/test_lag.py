"""The lag of a consumer: in the log, and from `Consumer.lag`."""

import logging

import pytest

import outbox
from outbox.consumer.entry import Entry
from outbox.events.event import Event
from tests.consumer.streams import GROUP, MakeConsumer, Stream, consume, make_group, note, running
from tests.support.servers import Redis
from tests.support.table import becomes_true


@pytest.fixture
def url(sqlite_url: str) -> str:
    """Nothing here depends on the kind of database."""
    return sqlite_url


@pytest.fixture(autouse=True)
def everything_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "outbox")


def test_it_counts_the_entries_that_the_group_was_not_given_yet(stream: Stream, make_consumer: MakeConsumer) -> None:
    consumer = make_consumer()
    assert consumer.lag() == 0  # no stream
    for _ in range(5):
        stream.add()
    assert consumer.lag() == 5  # no group
    stream.fetch(count=2)
    assert consumer.lag() == 3


def test_it_can_be_read_before_and_after_a_run(stream: Stream, make_consumer: MakeConsumer) -> None:
    for _ in range(3):
        stream.add()
    outbox.handler("note.*")(lambda event: note("effect"))
    consumer = make_consumer()
    assert consumer.lag() == 3
    consume(consumer, until=lambda: stream.left() == 0)
    assert consumer.lag() == 0


class TestWhereRedisDoesNotKnowTheLag:
    """Before version 7, or after a deletion."""

    @pytest.fixture
    def entries(self, stream: Stream) -> list[str]:
        for _ in range(12):
            stream.add()
        ids = [id.decode() for id, _ in stream.client.xrange(stream.key)]
        stream.fetch(count=2)
        stream.client.xdel(stream.key, ids[5])
        (known,) = stream.client.xinfo_groups(stream.key)
        assert known["lag"] is None
        return ids

    def test_it_is_counted(self, redis_server: Redis, stream: Stream, entries: list[str]) -> None:
        assert str(make_group(redis_server.url, stream).state()) == "9 behind, 2 pending"

    def test_it_is_counted_up_to_a_cap(self, redis_server: Redis, stream: Stream, entries: list[str]) -> None:
        assert make_group(redis_server.url, stream).state(cap=7).behind == 7


def test_it_is_in_the_log_at_the_start_and_at_the_end(
    stream: Stream, make_consumer: MakeConsumer, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        stream.add()

    @outbox.handler("note.*", name="notes")
    def handle(event: Event) -> None:
        note("effect")

    consume(make_consumer(batch=1), until=lambda: stream.left() == 0)
    lines = [line for line in caplog.messages if "behind" in line]
    assert lines[0] == f"{stream.key}: 2 behind, 0 pending, 1 processed, 0 skipped, 0 parked"
    assert lines[-1] == f"{stream.key}: 0 behind, 0 pending, 3 processed, 0 skipped, 0 parked"


def test_it_is_in_the_log_while_nothing_succeeds(
    stream: Stream, make_consumer: MakeConsumer, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        stream.add()

    @outbox.handler("note.*")
    def fail(event: Event) -> None:
        raise ValueError("no")

    with running(make_consumer({"report_seconds": 0.01}, idle_seconds=3600)):
        becomes_true(lambda: f"{stream.key}: 0 behind, 3 pending, 0 processed, 0 skipped, 0 parked" in caplog.messages)


def test_an_idle_consumer_does_not_repeat_its_report(
    stream: Stream, make_consumer: MakeConsumer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox.handler("note.*")(lambda event: note("effect"))
    consumer = make_consumer({"report_seconds": 0.0})
    rounds: list[float] = []

    def read(seconds: float) -> list[Entry]:
        rounds.append(seconds)
        return []

    monkeypatch.setattr(consumer._source, "read", read)
    consume(consumer, until=lambda: len(rounds) > 20)
    assert len([line for line in caplog.messages if "behind" in line]) == 2  # at the start, and at the end


def test_it_is_that_of_its_own_group(stream: Stream, make_consumer: MakeConsumer) -> None:
    stream.add()
    stream.fetch(group=GROUP)
    assert make_consumer().lag() == 0
    assert make_consumer(group="another").lag() == 1
