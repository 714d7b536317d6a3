"""Entries that keep failing, or can't be read, are moved to the dead-letter stream, and can be consumed there."""

import logging
import threading

import peewee
import pytest

import outbox
from outbox.events.event import Event
from tests.consumer.streams import (
    MakeConsumer,
    Stream,
    consume,
    dealt_with,
    fields,
    note,
    notes,
    on_any_database,
    running,
)
from tests.support.servers import Redis
from tests.support.table import becomes_true


def test_an_entry_is_parked_after_max_deliveries_with_all_its_fields_and_notes(
    stream: Stream, make_consumer: MakeConsumer, caplog: pytest.LogCaptureFixture
) -> None:
    sent = fields({"n": 1}, headers='{"a":1}', tenant_id="t", correlation_id="c")
    id = stream.client.xadd(stream.key, sent)
    attempts = []

    @outbox.handler("note.*", name="notes")
    def fail(event: Event) -> None:
        attempts.append(event.attempt)
        note("effect")
        raise ValueError(f"attempt {event.attempt}")

    consumer = make_consumer(max_deliveries=3)
    with caplog.at_level(logging.WARNING, "outbox"):
        consume(consumer, until=lambda: consumer.counts.parked)
    assert attempts == [1, 2, 3]
    assert stream.parked() == [
        {name.encode(): value.encode() for name, value in sent.items()}
        | {
            b"error": b"notes: ValueError: attempt 3",
            b"deliveries": b"3",
            b"stream": stream.key.encode(),
            b"group": b"outbox",
            b"entry": id,
        }
    ]
    assert (notes(), dealt_with(), stream.left()) == ([], [], 0)
    assert str(consumer.counts) == "0 processed, 0 skipped, 1 parked"
    assert "will be delivered again, after 2 deliveries: notes: ValueError: attempt 2" in caplog.text
    event = f"<Event note.taken Note:1 {sent['id']}>"
    assert f"entry {id.decode()}, {event}, was moved to the dead-letter stream {stream.key}.dead" in caplog.text


@on_any_database
def test_an_entry_that_its_handler_rejects_is_parked_immediately(stream: Stream, make_consumer: MakeConsumer) -> None:
    stream.add()

    @outbox.handler("note.*", name="notes")
    def reject(event: Event) -> None:
        raise outbox.Reject("never")

    consume(make_consumer(idle_seconds=3600), until=stream.parked)
    (parked,) = stream.parked()
    assert (parked[b"error"], parked[b"deliveries"]) == (b"notes: Reject: never", b"1")


@on_any_database
def test_a_rejected_entry_waits_for_the_other_handlers(stream: Stream, make_consumer: MakeConsumer) -> None:
    stream.add()

    @outbox.handler("note.*", name="rejects")
    def reject(event: Event) -> None:
        raise outbox.Reject("never")

    @outbox.handler("note.*", name="works")
    def fail_once(event: Event) -> None:
        if event.attempt == 1:
            raise ValueError("once")
        note("effect")

    consume(make_consumer(), until=stream.parked)
    (parked,) = stream.parked()
    assert (parked[b"error"], parked[b"deliveries"]) == (b"rejects: Reject: never", b"2")
    assert notes() == ["effect"]


@on_any_database
@pytest.mark.parametrize(
    "error",
    # Peewee keeps the driver's own error as the first argument.
    [outbox.Unavailable("away"), peewee.OperationalError(ConnectionError(), "the connection is lost")],
    ids=["unavailable", "connection lost"],
)
def test_failures_that_cost_no_delivery_do_not_park_an_entry(
    stream: Stream, make_consumer: MakeConsumer, error: Exception
) -> None:
    stream.add()
    attempts: list[int] = []

    @outbox.handler("note.*")
    def fail(event: Event) -> None:
        attempts.append(event.attempt)
        if len(attempts) < 5:
            raise error
        note("effect")

    consumer = make_consumer({"database_retry_seconds": 0.01}, max_deliveries=2)
    consume(consumer, until=lambda: attempts and stream.left() == 0)
    assert attempts == [1, 1, 1, 1, 1]
    assert (notes(), stream.parked()) == (["effect"], [])


def test_a_handler_that_closes_the_connection_has_failed(
    database: peewee.Database, stream: Stream, make_consumer: MakeConsumer
) -> None:
    stream.add()
    outbox.handler("note.*")(lambda event: database.close())
    consume(make_consumer(max_deliveries=2), until=stream.parked)
    assert b"Attempting to close database while transaction is open" in stream.parked()[0][b"error"]


@on_any_database
class TestAnEntryThatCanNotBeRead:
    def test_is_parked_as_it_is_and_the_others_go_on(
        self, stream: Stream, make_consumer: MakeConsumer, caplog: pytest.LogCaptureFixture
    ) -> None:
        id = stream.client.xadd(stream.key, {"what": b"\xff\x00 no event", "error": "its own"})
        stream.add()
        outbox.handler("*")(lambda event: note("effect"))
        consumer = make_consumer()
        consume(consumer, until=lambda: consumer.counts.parked and notes())
        assert stream.parked() == [
            {
                b"what": b"\xff\x00 no event",
                b"error": b"The entry can't be read as an event: it has no 'id'",
                b"deliveries": b"1",
                b"stream": stream.key.encode(),
                b"group": b"outbox",
                b"entry": id,
            }
        ]
        assert stream.left() == 0
        assert (
            f"entry {id.decode()} was moved to the dead-letter stream {stream.key}.dead: The entry can't be read"
            in caplog.text
        )

    def test_may_have_very_many_fields(self, stream: Stream, make_consumer: MakeConsumer) -> None:
        stream.client.xadd(stream.key, {str(n): n for n in range(10_000)})
        outbox.handler("*")(note)
        consume(make_consumer(), until=stream.parked)
        assert len(stream.parked()[0]) == 10_005


@on_any_database
def test_an_error_whose_text_is_not_valid_unicode_is_stored(stream: Stream, make_consumer: MakeConsumer) -> None:
    stream.add()

    @outbox.handler("note.*", name="notes")
    def reject(event: Event) -> None:
        raise outbox.Reject("half a \ud83d")

    consume(make_consumer(), until=stream.parked)
    assert stream.parked()[0][b"error"] == b"notes: Reject: half a \\ud83d"


@on_any_database
def test_another_stream_may_be_named(stream: Stream, make_consumer: MakeConsumer) -> None:
    stream.client.xadd(stream.key, {"no": "event"})
    outbox.handler("*")(note)
    elsewhere = f"{stream.key}-elsewhere"
    consume(make_consumer(dead_letter=elsewhere), until=lambda: stream.client.exists(elsewhere))
    assert stream.parked() == []


class TestTheDeadLetterStream:
    def test_is_consumed_like_any_other_when_the_cause_is_mended(
        self, redis_server: Redis, stream: Stream, make_consumer: MakeConsumer
    ) -> None:
        ids = [stream.add({"n": n}) for n in range(3)]
        mended = threading.Event()
        seen: list[Event] = []

        @outbox.handler("note.*", name="notes")
        def handle(event: Event) -> None:
            if not mended.is_set():
                raise outbox.Reject("broken")
            seen.append(event)
            note(event.payload["n"])

        consume(make_consumer(), until=lambda: len(stream.parked()) == 3)
        mended.set()
        dead = Stream(stream.client, f"{stream.key}.dead")
        consume(outbox.Consumer(dead.key, url=redis_server.url), until=lambda: dead.left() == 0)
        assert notes() == ["0", "1", "2"]
        assert [(event.id, event.attempt) for event in seen] == [(id, 1) for id in ids]
        assert dealt_with() == sorted((str(id), "notes") for id in ids)

    @on_any_database
    def test_has_one_of_its_own_for_what_fails_again(
        self, redis_server: Redis, stream: Stream, make_consumer: MakeConsumer
    ) -> None:
        stream.add()

        @outbox.handler("note.*", name="notes")
        def reject(event: Event) -> None:
            raise outbox.Reject("broken")

        consume(make_consumer(), until=stream.parked)
        dead = Stream(stream.client, f"{stream.key}.dead")
        with running(outbox.Consumer(dead.key, url=redis_server.url)):
            becomes_true(dead.parked)
        (parked,) = dead.parked()
        assert (parked[b"stream"], parked[b"error"]) == (dead.key.encode(), b"notes: Reject: broken")
        assert dead.left() == 0


def test_an_entry_that_emit_would_refuse_is_parked_with_the_reason_before_a_handler_fails_on_it(
    stream: Stream, make_consumer: MakeConsumer
) -> None:
    """A handler that stores such a text would fail at each delivery, since PostgreSQL can't store NUL."""
    stream.add({}, data='{"text":"a\\u0000b"}')
    stream.add({"text": "x" * (256 * 1024)})
    stream.add({}, aggregate_id="7" * 101)
    good = stream.add({"text": "good"})

    @outbox.handler("note.*", name="notes")
    def store(event: Event) -> None:
        note(event.payload["text"])

    consumer = make_consumer()
    consume(consumer, until=lambda: stream.left() == 0 and len(stream.parked()) == 3)
    assert (notes(), dealt_with()) == (["good"], [(str(good), "notes")])
    reasons = [entry[b"error"].decode() for entry in stream.parked()]
    assert all(reason.startswith("The entry can't be read as an event: ") for reason in reasons)
    assert "NUL character" in reasons[0]
    assert "OUTBOX_MAX_PAYLOAD_BYTES" in reasons[1]
    assert "aggregate_id" in reasons[2]
