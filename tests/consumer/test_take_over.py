"""Entries that a consumer has read and not acknowledged are taken over, one at a time, by another consumer."""

import logging
import time

import pytest

import outbox
from outbox.consumer.counts import Counts
from outbox.consumer.entry import Entry
from outbox.consumer.entry_outcome import Redeliver
from outbox.consumer.settle import settle
from outbox.events.event import Event
from tests.consumer.streams import (
    Crash,
    MakeConsumer,
    Stream,
    consume,
    dealt_with,
    dies,
    make_group,
    note,
    notes,
    on_any_database,
    running,
)
from tests.support.servers import Redis
from tests.support.table import becomes_true


def test_entries_of_a_dead_consumer_have_their_effect(stream: Stream, make_consumer: MakeConsumer) -> None:
    ids = [stream.add({"n": n}) for n in range(3)]
    stream.fetch()
    attempts = []

    @outbox.handler("note.*", name="notes")
    def handle(event: Event) -> None:
        attempts.append(event.attempt)
        note(event.payload["n"])

    consumer = make_consumer()
    consume(consumer, until=lambda: stream.left() == 0)
    assert (notes(), attempts) == (["0", "1", "2"], [2, 2, 2])
    assert dealt_with() == sorted((str(id), "notes") for id in ids)
    assert str(consumer.counts) == "3 processed, 0 skipped, 0 parked"


def test_after_a_crash_in_a_batch_its_entries_are_taken_over_and_processed_ones_are_skipped(
    stream: Stream, make_consumer: MakeConsumer
) -> None:
    for n in range(5):
        stream.add({"n": n})

    @outbox.handler("note.*")
    def handle(event: Event) -> None:
        if event.attempt == 1 and event.payload["n"] == 3:
            raise Crash
        note(event.payload["n"])

    dies(make_consumer())
    assert (notes(), stream.pending()) == (["0", "1", "2"], [1, 1, 1, 1, 1])
    consumer = make_consumer()
    consume(consumer, until=lambda: stream.left() == 0)
    assert notes() == ["0", "1", "2", "3", "4"]
    assert str(consumer.counts) == "5 processed, 3 skipped, 0 parked"


@on_any_database
def test_an_entry_is_not_taken_over_before_it_is_idle_for_long_enough(
    stream: Stream, make_consumer: MakeConsumer
) -> None:
    stream.add({"n": "old"})
    stream.fetch()
    outbox.handler("note.*")(lambda event: note(event.payload["n"]))
    with running(make_consumer(idle_seconds=3600)):
        for n in ("new", "newer"):  # after the first, it has looked for entries of others
            stream.add({"n": n})
            becomes_true(lambda n=n: n in notes())
    assert (notes(), stream.pending()) == (["new", "newer"], [1])


@on_any_database
def test_more_than_a_page_is_taken_over(stream: Stream, make_consumer: MakeConsumer) -> None:
    for n in range(25):
        stream.add({"n": n})
    stream.fetch()
    outbox.handler("note.*")(lambda event: note(event.payload["n"]))
    consume(make_consumer(batch=4), until=lambda: stream.left() == 0)
    assert sorted(map(int, notes())) == list(range(25))


@on_any_database
class TestAnEntryThatKillsItsConsumer:
    def test_is_parked_in_the_end_and_the_others_lose_no_deliveries(
        self, stream: Stream, make_consumer: MakeConsumer
    ) -> None:
        for n in range(3):
            stream.add({"n": n})
        attempts: list[tuple[int, int]] = []

        @outbox.handler("note.*", name="notes")
        def handle(event: Event) -> None:
            attempts.append((event.payload["n"], event.attempt))
            if event.payload["n"] == 1:
                raise Crash
            note(event.payload["n"])

        for _ in range(3):
            dies(make_consumer(max_deliveries=3))
        consume(make_consumer(max_deliveries=3), until=lambda: stream.left() == 0)
        assert sorted(attempts) == [(0, 1), (1, 1), (1, 2), (1, 3), (2, 2)]
        assert notes() == ["0", "2"]
        (parked,) = stream.parked()
        assert parked[b"data"] == b'{"n": 1}'
        assert parked[b"deliveries"] == b"3"
        assert parked[b"error"] == (
            b"notes: delivered 3 times, and each time its consumer crashed or stopped responding"
        )

    def test_does_not_park_others_if_each_may_be_delivered_only_once(
        self, stream: Stream, make_consumer: MakeConsumer
    ) -> None:
        for n in range(3):
            stream.add({"n": n})

        @outbox.handler("note.*")
        def handle(event: Event) -> None:
            if event.payload["n"] == 0:
                raise Crash
            note(event.payload["n"])

        dies(make_consumer(max_deliveries=1))
        consume(make_consumer(max_deliveries=1), until=lambda: stream.left() == 0)
        assert notes() == ["1", "2"]
        assert [entry[b"data"] for entry in stream.parked()] == [b'{"n": 0}']


def test_an_exhausted_entry_stays_exhausted_if_the_database_is_lost_meanwhile(
    stream: Stream, make_consumer: MakeConsumer
) -> None:
    stream.add()
    (id,) = stream.fetch()
    lost = (Entry(id, {}, deliveries=5, is_exhausted=True), Redeliver("lost", database_lost=True))
    settle(make_consumer()._source, [lost], Counts())
    assert stream.pending() == [5]


class TestTwoConsumersThatFindTheSameEntry:
    def test_the_first_one_gets_it(self, redis_server: Redis, stream: Stream) -> None:
        stream.add()
        (id,) = stream.fetch()
        first, second = (make_group(redis_server.url, stream, name) for name in ("first", "second"))
        becomes_true(lambda: stream.idle_seconds(id) > 0.5)
        assert first.idle_entries(None, 0.5, 10) == second.idle_entries(None, 0.5, 10) == [id]
        taken = first.take_over(id, 0.5, max_deliveries=5)
        assert taken is not None
        assert (taken.deliveries, taken.is_exhausted) == (2, False)
        assert second.take_over(id, 3600, max_deliveries=5) is None
        assert stream.pending() == [2]

    def test_the_number_of_deliveries_is_read_when_it_is_taken_over_not_when_it_was_found(
        self, redis_server: Redis, stream: Stream
    ) -> None:
        stream.add()
        (id,) = stream.fetch()
        first, second = (make_group(redis_server.url, stream, name) for name in ("first", "second"))
        assert second.idle_entries(None, 0, 10) == [id]
        for _ in range(3):
            first.take_over(id, 0, max_deliveries=5)
        taken = second.take_over(id, 0, max_deliveries=5)
        assert taken is not None
        assert (taken.deliveries, taken.is_exhausted) == (5, False)
        spent = first.take_over(id, 0, max_deliveries=5)
        assert spent is not None
        assert (spent.deliveries, spent.is_exhausted) == (5, True)


@on_any_database
def test_entries_that_wait_for_their_turn_stay_with_their_consumer(stream: Stream, make_consumer: MakeConsumer) -> None:
    for n in range(3):
        stream.add({"n": n})
    ids = [id.decode() for id, _ in stream.client.xrange(stream.key)]
    since: list[float] = []

    @outbox.handler("note.*")
    def handle(event: Event) -> None:
        if event.payload["n"] == 0:
            becomes_true(lambda: stream.idle_seconds(ids[2]) > 0.5)
        if event.payload["n"] < 2:
            since.append(time.monotonic() - stream.idle_seconds(ids[2]))

    consume(make_consumer(idle_seconds=1), until=lambda: stream.left() == 0)
    first, second = since
    assert second > first + 0.4  # the consumer has claimed the third again meanwhile, so that it is not taken over


@on_any_database
def test_an_entry_that_another_consumer_has_processed_meanwhile_is_not_begun(
    stream: Stream, make_consumer: MakeConsumer
) -> None:
    for n in range(3):
        stream.add({"n": n})
    ids = [id.decode() for id, _ in stream.client.xrange(stream.key)]

    @outbox.handler("note.*")
    def handle(event: Event) -> None:
        note(event.payload["n"])
        if event.payload["n"] == 0:
            becomes_true(lambda: stream.idle_seconds(ids[2]) > 0.5)
            stream.client.xack(stream.key, "outbox", ids[1])

    consume(make_consumer(idle_seconds=1), until=lambda: stream.left() == 0)
    assert notes() == ["0", "2"]


@on_any_database
@pytest.mark.parametrize("trim", ["xdel", "xtrim"])
def test_an_entry_that_was_trimmed_is_logged_and_acknowledged(
    stream: Stream, make_consumer: MakeConsumer, caplog: pytest.LogCaptureFixture, trim: str
) -> None:
    stream.add({"n": "gone"})
    (id,) = stream.fetch()
    stream.add({"n": "kept"})
    if trim == "xdel":
        stream.client.xdel(stream.key, id)
    else:
        stream.client.xtrim(stream.key, maxlen=1, approximate=False)
    outbox.handler("note.*")(lambda event: note(event.payload["n"]))
    with caplog.at_level(logging.WARNING, "outbox"):
        consume(make_consumer(), until=lambda: stream.left() == 0)
    assert notes() == ["kept"]
    assert f"entry {id} was trimmed from the stream before it was processed" in caplog.text


class TestAConsumerThatWasKilled:
    def test_is_removed_from_the_group_once_it_has_no_pending_entries(
        self, stream: Stream, make_consumer: MakeConsumer
    ) -> None:
        soon = {"cleanup_seconds": 0.1, "dead_after_seconds": 0.5}
        stream.add()
        stream.fetch("dead")
        outbox.handler("note.*")(lambda event: note("effect"))
        with running(make_consumer(soon, name="alive")):
            becomes_true(lambda: stream.consumers() == [b"alive"])
        assert notes() == ["effect"]

    def test_stays_while_it_has_pending_entries(self, redis_server: Redis, stream: Stream) -> None:
        stream.add()
        stream.fetch("dead")
        make_group(redis_server.url, stream).remove_idle_consumers(0)
        assert (stream.consumers(), stream.pending()) == ([b"dead"], [1])

    def test_stays_until_it_is_idle_for_long(self, redis_server: Redis, stream: Stream) -> None:
        stream.add()
        (id,) = stream.fetch("dead")
        stream.client.xack(stream.key, "outbox", id)
        group = make_group(redis_server.url, stream)
        group.remove_idle_consumers(3600)
        assert stream.consumers() == [b"dead"]
        group.remove_idle_consumers(0)
        assert stream.consumers() == []
