"""An entry has its effect once, in one transaction with the inbox's row, and is acknowledged after the commit."""

import contextlib
import logging
import threading
from typing import Any

import peewee
import pytest

import outbox
from outbox.consumer.consumer_group import ConsumerGroup
from outbox.core import Outbox
from outbox.events.event import Event
from tests.conftest import Note
from tests.consumer.streams import Crash, MakeConsumer, Stream, consume, dealt_with, note, notes, running
from tests.support.servers import PATIENCE_SECONDS
from tests.support.table import becomes_true, on_postgres, passes


@pytest.fixture
def crash(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Crash between the commit and the acknowledgement."""

    def die(*_: Any) -> None:
        raise Crash

    monkeypatch.setattr(ConsumerGroup, "acknowledge", die)
    return monkeypatch


def test_each_entry_has_its_effect_and_is_acknowledged(stream: Stream, make_consumer: MakeConsumer) -> None:
    ids = [stream.add({"n": n}) for n in range(120)]
    outbox.handler("note.*", name="notes")(lambda event: note(event.payload["n"]))
    consumer = make_consumer()
    consume(consumer, until=lambda: stream.left() == 0)
    assert sorted(map(int, notes())) == list(range(120))
    assert dealt_with() == sorted((str(id), "notes") for id in ids)
    assert str(consumer.counts) == "120 processed, 0 skipped, 0 parked"


def test_an_event_that_is_in_the_stream_twice_has_its_effect_once(
    box: Outbox, stream: Stream, make_consumer: MakeConsumer
) -> None:
    id = stream.add()
    stream.add(id=str(id))
    outbox.handler("note.*")(lambda event: note(event.id))
    consumer = make_consumer()
    consume(consumer, until=lambda: stream.left() == 0)
    assert notes() == [str(id)]
    assert str(consumer.counts) == "2 processed, 1 skipped, 0 parked"
    assert box.counters["skipped"] == 1


def test_a_crash_between_commit_and_acknowledgement_is_followed_by_a_skip(
    stream: Stream, make_consumer: MakeConsumer, crash: pytest.MonkeyPatch
) -> None:
    id = stream.add()
    outbox.handler("note.*")(lambda event: note(event.id))
    with pytest.raises(Crash):
        consume(make_consumer(), until=notes)
    assert stream.pending() == [1]
    crash.undo()
    consumer = make_consumer()
    consume(consumer, until=lambda: stream.left() == 0)
    assert notes() == [str(id)]
    assert str(consumer.counts) == "1 processed, 1 skipped, 0 parked"


def test_a_crash_after_the_commit_of_the_last_delivery_parks_nothing(
    stream: Stream, make_consumer: MakeConsumer, crash: pytest.MonkeyPatch
) -> None:
    stream.add()
    outbox.handler("note.*")(lambda event: note(event.id))
    with pytest.raises(Crash):
        consume(make_consumer(), until=notes)
    crash.undo()
    consume(make_consumer(max_deliveries=1), until=lambda: stream.left() == 0)
    assert (len(notes()), stream.parked()) == (1, [])


@pytest.mark.parametrize(
    "error", [ValueError("no"), SystemExit(1), outbox.RetryLater(), outbox.Unavailable(), outbox.Reject("no")], ids=repr
)
def test_a_handler_that_raises_leaves_neither_row_nor_effect(
    stream: Stream, make_consumer: MakeConsumer, error: BaseException
) -> None:
    stream.add()
    called = threading.Event()

    @outbox.handler("note.*")
    def fail(event: Event) -> None:
        note("effect")
        called.set()
        raise error

    with running(make_consumer(idle_seconds=60)):
        passes(called)
    assert (notes(), dealt_with()) == ([], [])


def test_a_handler_that_failed_is_called_again_with_the_number_of_the_attempt(
    stream: Stream, make_consumer: MakeConsumer
) -> None:
    stream.add()
    attempts = []

    @outbox.handler("note.*")
    def fail_twice(event: Event) -> None:
        attempts.append(event.attempt)
        note("effect")
        if event.attempt < 3:
            raise ValueError(event.attempt)

    consume(make_consumer(), until=lambda: attempts and stream.left() == 0)
    assert attempts == [1, 2, 3]
    assert notes() == ["effect"]


def test_other_entries_are_processed_while_one_fails(stream: Stream, make_consumer: MakeConsumer) -> None:
    for n in range(5):
        stream.add({"n": n})

    @outbox.handler("note.*")
    def handle(event: Event) -> None:
        if event.payload["n"] == 0:
            raise ValueError("not this one")
        note(event.payload["n"])

    consume(make_consumer(idle_seconds=60), until=lambda: stream.pending() == [1])
    assert notes() == ["1", "2", "3", "4"]


class TestSeveralHandlers:
    def test_have_a_transaction_each_and_one_that_succeeded_is_not_called_again(
        self, stream: Stream, make_consumer: MakeConsumer
    ) -> None:
        id = stream.add()

        @outbox.handler("note.*", name="fails")
        def fail_once(event: Event) -> None:
            note(f"fails {event.attempt}")
            if event.attempt == 1:
                raise ValueError("once")

        outbox.handler("*", name="works")(lambda event: note(f"works {event.attempt}"))
        consumer = make_consumer()
        consume(consumer, until=lambda: notes() and stream.pending() == [])
        assert notes() == ["fails 2", "works 1"]
        assert dealt_with() == [(str(id), "fails"), (str(id), "works")]
        assert str(consumer.counts) == "1 processed, 1 skipped, 0 parked"

    def test_get_what_they_want(self, stream: Stream, make_consumer: MakeConsumer) -> None:
        for type in ("a.b", "a.c", "x.y"):
            stream.add(type=type)
        outbox.handler("a.*", name="all")(lambda event: note(f"all {event.event_type}"))
        outbox.handler("a.c", name="one")(lambda event: note(f"one {event.event_type}"))
        consume(make_consumer(), until=lambda: stream.left() == 0)
        assert notes() == ["all a.b", "all a.c", "one a.c"]


def test_an_entry_that_no_handler_wants_is_acknowledged(
    stream: Stream, make_consumer: MakeConsumer, caplog: pytest.LogCaptureFixture
) -> None:
    stream.add(type="other.type")
    outbox.handler("note.*")(note)
    with caplog.at_level(logging.DEBUG, "outbox"):
        consume(make_consumer(), until=lambda: stream.left() == 0)
    assert "no handler here wants <Event other.type" in caplog.text
    assert (dealt_with(), stream.parked()) == ([], [])


def test_other_destinations_of_the_registry_are_not_used(stream: Stream, make_consumer: MakeConsumer) -> None:
    class Elsewhere:
        name = "elsewhere"
        events = ("*",)

        def deliver(self, events: Any, lease: Any) -> Any:
            raise AssertionError("a consumer calls handlers")

    outbox.add_destination(Elsewhere())
    outbox.handler("note.*")(lambda event: note("effect"))
    stream.add()
    consume(make_consumer(), until=lambda: stream.left() == 0)
    assert (notes(), stream.parked()) == (["effect"], [])


def test_a_registry_of_its_own_may_be_given(stream: Stream, make_consumer: MakeConsumer) -> None:
    registry = outbox.Registry()
    registry.handler("note.*", name="own")(lambda event: note("own"))
    outbox.handler("note.*", name="shared")(lambda event: note("shared"))
    stream.add()
    consume(make_consumer(registry=registry), until=lambda: stream.left() == 0)
    assert notes() == ["own"]


def test_handlers_run_in_the_context_of_their_event(stream: Stream, make_consumer: MakeConsumer) -> None:
    stream.add(correlation_id="story", tenant_id="acme")
    outbox.handler("note.*")(lambda event: outbox.emit("Note", 1, "note.kept"))
    consume(make_consumer(), until=lambda: stream.left() == 0)
    (emitted,) = outbox.OutboxEvent.select()
    assert (emitted.correlation_id, emitted.tenant_id) == ("story", "acme")


def test_what_a_handler_emits_is_undone_with_its_effect(stream: Stream, make_consumer: MakeConsumer) -> None:
    stream.add()

    @outbox.handler("note.*")
    def emit_and_fail(event: Event) -> None:
        outbox.emit("Note", 1, "note.kept")
        raise outbox.Reject("no")

    consume(make_consumer(), until=stream.parked)
    assert outbox.OutboxEvent.select().count() == 0


def test_a_handler_may_use_transactions_of_its_own(
    database: peewee.Database, stream: Stream, make_consumer: MakeConsumer
) -> None:
    stream.add()

    @outbox.handler("note.*")
    def handle(event: Event) -> None:
        with database.atomic():
            note("kept")
        with contextlib.suppress(ValueError), database.atomic():
            note("dropped")
            raise ValueError("undone")

    consume(make_consumer(), until=lambda: stream.left() == 0)
    assert notes() == ["kept"]


def test_connections_are_returned_after_each_entry(database: Any, stream: Stream, make_consumer: MakeConsumer) -> None:
    stream.add()
    outbox.handler("note.*")(lambda event: note("effect"))
    with running(make_consumer()):
        becomes_true(lambda: stream.left() == 0)
        Note.select().count()
        becomes_true(lambda: len(database._in_use) == 1)  # the test's own


@on_postgres
def test_a_handler_that_is_slower_than_the_take_over_still_has_its_effect_once(
    stream: Stream, make_consumer: MakeConsumer
) -> None:
    stream.add()
    gate, calls = threading.Event(), []

    @outbox.handler("note.*")
    def slow(event: Event) -> None:
        calls.append(event.attempt)
        note("effect")
        passes(gate)

    consumers = [make_consumer(), make_consumer()]
    with running(*consumers):
        becomes_true(lambda: stream.pending() == [2])  # the other has taken it over, and waits for the first's commit
        gate.set()
        becomes_true(lambda: stream.left() == 0)
    assert (calls, notes()) == ([1], ["effect"])
    assert sum(consumer.counts.skipped for consumer in consumers) == 1


def test_several_consumers_share_the_entries_and_each_has_its_effect_once(
    stream: Stream, make_consumer: MakeConsumer
) -> None:
    for n in range(60):
        stream.add({"n": n})
    outbox.handler("note.*")(lambda event: note(event.payload["n"]))
    consumers = [make_consumer(batch=5, idle_seconds=60) for _ in range(3)]
    consume(*consumers, until=lambda: stream.left() == 0)
    assert sorted(map(int, notes())) == list(range(60))
    assert sum(consumer.counts.processed for consumer in consumers) == 60
    assert sum(consumer.counts.skipped for consumer in consumers) == 0


@on_postgres
def test_several_consumers_work_at_the_same_time(stream: Stream, make_consumer: MakeConsumer) -> None:
    for _ in range(2):
        stream.add()
    both = threading.Barrier(2, timeout=PATIENCE_SECONDS)
    outbox.handler("note.*")(lambda event: note(both.wait()))
    consumers = [make_consumer(batch=1, idle_seconds=60) for _ in range(2)]
    consume(*consumers, until=lambda: stream.left() == 0)
    assert [consumer.counts.processed for consumer in consumers] == [1, 1]
    assert notes() == ["0", "1"]


@on_postgres
def test_an_entry_whose_transaction_can_not_be_committed_is_not_acknowledged(
    database: peewee.Database, stream: Stream, make_consumer: MakeConsumer
) -> None:
    stream.add()

    @outbox.handler("note.*")
    def swallow(event: Event) -> None:
        note("effect")
        with contextlib.suppress(peewee.ProgrammingError):
            database.execute_sql("SELECT nonsense")  # PostgreSQL will answer the commit with a rollback

    consume(make_consumer(max_deliveries=2), until=stream.parked)
    assert (notes(), dealt_with()) == ([], [])
    assert b"can't be committed" in stream.parked()[0][b"error"]


def test_a_handler_that_uses_inbox_once_with_the_same_name_is_called(
    stream: Stream, make_consumer: MakeConsumer
) -> None:
    id = stream.add()
    stream.add(id=str(id))

    @outbox.handler("note.*", name="notes")
    @outbox.inbox.once("notes")
    def keep(event: Event) -> None:
        note("effect")

    consume(make_consumer(), until=lambda: stream.left() == 0)
    assert notes() == ["effect"]
    assert dealt_with() == [(str(id), "notes"), (str(id), "notes (consumed)")]
