"""outbox.testing.deliver: the real claim, dispatch and settle, in the test's thread and inside its transaction."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import peewee
import pytest

import outbox
from outbox import testing
from outbox.core import Outbox
from outbox.destinations.outcome import Outcome
from outbox.errors import RegistrationError
from outbox.storage.models import DELIVERED, FAILED, PENDING
from outbox.testing.errors import TransactionEnded
from outbox.testing.rolled_back import rolled_back
from tests.conftest import Configure, Note
from tests.support.table import claimed, emit, emit_one, error_of, statuses, stored


@contextmanager
def in_atomic(database: Any) -> Iterator[None]:
    with database.atomic() as transaction:
        yield
        transaction.rollback()


@contextmanager
def in_manual_commit(database: Any) -> Iterator[None]:
    database.connect(reuse_if_open=True)  # otherwise Peewee forgets the block when it connects
    with database.manual_commit():
        database.begin()
        yield
        database.rollback()


@pytest.fixture(params=[in_atomic, in_manual_commit, rolled_back], ids=lambda each: each.__name__)
def in_transaction(box: Outbox, request: pytest.FixtureRequest) -> Iterator[None]:
    """A test's transaction, which is rolled back in the end."""
    with request.param(box.database):
        yield
    assert (sum(statuses().values()), Note.select().count()) == (0, 0)


def note(event: outbox.Event) -> None:
    Note.create(text=event.aggregate_id)


class TestInsideTheTestsTransaction:
    def test_handlers_see_what_is_not_committed_and_outcomes_are_settled(
        self, box: Outbox, in_transaction: None
    ) -> None:
        seen: list[int] = []
        outbox.handler("order.placed", name="notes")(note)
        outbox.handler("order.placed", name="counts")(lambda _: seen.append(Note.select().count()))
        Note.create(text="of the test")
        events = emit(3)
        assert testing.deliver() == 3
        assert {stored(event).status for event in events} == {DELIVERED}
        assert seen == [4, 4, 4]

    def test_a_refusal_is_written_and_then_raised(self, box: Outbox, in_transaction: None) -> None:
        error = ValueError("no stock")

        @outbox.handler("order.placed", name="fails")
        def fails(event: outbox.Event) -> None:
            raise error

        event = emit_one()
        with pytest.raises(ValueError, match="no stock") as caught:
            testing.deliver()
        assert caught.value is error
        assert "Raised by fails for <Event order.placed Order:0" in caught.value.__notes__[0]
        assert (stored(event).status, stored(event).attempts) == (PENDING, 1)
        assert error_of(event) == "fails: ValueError: no stock"

    def test_an_event_that_is_refused_is_tried_once_a_call(self, configure: Configure, in_transaction: None) -> None:
        configure(backoff_base_seconds=0)
        attempts: list[int] = []

        @outbox.handler("order.placed", name="fails")
        def fails(event: outbox.Event) -> None:
            attempts.append(event.attempt)
            raise ValueError

        emit(2)
        testing.deliver(raise_errors=False)
        assert attempts == [1, 1]
        testing.deliver(raise_errors=False)
        assert attempts == [1, 1, 2, 2]

    def test_it_is_not_tried_again_with_an_event_that_comes_meanwhile(
        self, configure: Configure, in_transaction: None
    ) -> None:
        configure(backoff_base_seconds=0)
        attempts: list[int] = []

        @outbox.handler("order.placed", name="fails")
        def fails(event: outbox.Event) -> None:
            attempts.append(event.attempt)
            raise ValueError

        @outbox.handler("order.placed", name="pays")
        def pays(event: outbox.Event) -> None:
            outbox.emit("Order", event.aggregate_id, "order.paid")

        outbox.handler("order.paid", name="notes")(note)
        emit(1)
        assert testing.deliver(raise_errors=False) == 1
        assert attempts == [1]
        testing.deliver(raise_errors=False)
        assert attempts == [1, 2]

    def test_what_handlers_emit_meanwhile_is_delivered_too(self, box: Outbox, in_transaction: None) -> None:
        @outbox.handler("order.placed", name="pays")
        def pays(event: outbox.Event) -> None:
            outbox.emit("Order", event.aggregate_id, "order.paid")

        outbox.handler("order.paid", name="notes")(note)
        emit(2)
        assert testing.deliver() == 4
        assert {each.text for each in Note.select()} == {"0", "1"}

    def test_what_is_due_later_is_left(self, box: Outbox, in_transaction: None) -> None:
        outbox.handler("order.placed", name="notes")(note)
        emit(1, deliver_after=timedelta(hours=1))
        assert testing.deliver() == 0

    def test_events_of_a_key_come_in_order(self, box: Outbox, in_transaction: None) -> None:
        got: list[str] = []

        @outbox.handler("order.placed", name="fails once")
        def fails_once(event: outbox.Event) -> None:
            if event.aggregate_id == "1" and event.attempt == 1:
                raise ValueError
            got.append(event.aggregate_id)

        emit(3, ordering_key="one")
        testing.deliver(raise_errors=False)
        assert got == ["0"]
        testing.run_all()
        assert got == ["0", "1", "2"]


class TestWhatACallLeaves:
    @pytest.fixture(autouse=True)
    def _in_transaction(self, box: Outbox) -> Iterator[None]:
        with rolled_back(box.database):
            yield

    def test_a_statement_that_fails_does_not_abort_the_test(self, box: Outbox) -> None:
        @outbox.handler("order.placed", name="clumsy")
        def clumsy(event: outbox.Event) -> None:
            box.database.execute_sql("SELECT * FROM nowhere")

        event = emit_one()
        with pytest.raises(peewee.DatabaseError):
            testing.deliver()
        assert stored(event).attempts == 1

    def test_an_atomic_block_that_fails_is_rolled_back_alone(self, box: Outbox) -> None:
        @outbox.handler("order.placed", name="half")
        def half(event: outbox.Event) -> None:
            Note.create(text="committed by itself")
            with box.database.atomic():
                Note.create(text="rolled back")
                raise ValueError

        emit(1)
        testing.deliver(raise_errors=False)
        assert [each.text for each in Note.select()] == ["committed by itself"]

    def test_a_transaction_that_a_call_left_open_is_rolled_back_and_costs_an_attempt(self, box: Outbox) -> None:
        @outbox.handler("order.placed", name="forgetful")
        def forgetful(event: outbox.Event) -> None:
            box.database.transaction().__enter__()
            Note.create(text="lost")

        event = emit_one()
        with pytest.raises(testing.NotAccepted, match="a transaction was left open; it was rolled back"):
            testing.deliver()
        assert (stored(event).attempts, Note.select().count(), box.database.transaction_depth()) == (1, 0, 1)

    def test_a_call_that_ends_the_tests_transaction_is_an_error_that_says_so(self, box: Outbox) -> None:
        @outbox.handler("order.placed", name="ends")
        def ends(event: outbox.Event) -> None:
            box.database.rollback()

        emit(1)
        with pytest.raises(TransactionEnded, match="rollback=False"):
            testing.deliver()
        box.database.begin()  # for the end of the fixture

    def test_a_test_that_fails_inside_a_handler_ends_there(self, box: Outbox) -> None:
        @outbox.handler("order.placed", name="asserts")
        def asserts(event: outbox.Event) -> None:
            Note.create(text="gone")
            pytest.fail("wrong total")

        event = emit_one()
        with pytest.raises(pytest.fail.Exception, match="wrong total"):
            testing.deliver()
        assert (stored(event).status, Note.select().count()) == (PENDING, 0)

    def test_a_block_of_with_db_does_not_close_the_connection(self, box: Outbox) -> None:
        @outbox.handler("order.placed", name="opens")
        def opens(event: outbox.Event) -> None:
            with box.database:
                Note.create(text="a")
            with box.database.connection_context():
                Note.create(text="b")

        emit(1)
        assert testing.deliver() == 1
        assert Note.select().count() == 2


class TestOnly:
    def test_the_others_get_nothing_and_lose_no_attempt(self, box: Outbox) -> None:
        called: list[str] = []
        outbox.handler("order.placed", name="a")(lambda _: called.append("a"))

        @outbox.handler("order.placed", name="b")
        def b(event: outbox.Event) -> None:
            called.append("b")

        event = emit_one()
        assert testing.deliver(only=b) == 0
        assert (called, stored(event).status) == (["b"], PENDING)
        assert testing.deliver(only=["a", b]) == 1
        assert (called, stored(event).status, stored(event).attempts) == (["b", "a"], DELIVERED, 1)

    def test_a_name_that_is_not_registered_is_refused(self, box: Outbox) -> None:
        outbox.handler("order.placed", name="a")(note)
        with pytest.raises(RegistrationError, match=r"'c'.*\(a\)"):
            testing.deliver(only="c")


class TestWithoutATransaction:
    def test_it_runs_here_without_threads_and_connections_that_stay(self, box: Outbox) -> None:
        threads: list[threading.Thread] = []
        for name in ("a", "b"):
            outbox.handler("order.placed", name=name)(lambda _: threads.append(threading.current_thread()))
        before = set(threading.enumerate())
        emit(1)
        box.database.close()
        assert testing.deliver() == 1
        assert set(threads) == {threading.current_thread()}
        assert set(threading.enumerate()) <= before  # one of an earlier test may have ended meanwhile
        assert box.database.is_closed()

    def test_a_transaction_that_a_handler_left_open_is_rolled_back(self, box: Outbox) -> None:
        @outbox.handler("order.placed", name="forgetful")
        def forgetful(event: outbox.Event) -> None:
            box.database.begin()

        emit(1)
        with pytest.raises(testing.NotAccepted):
            testing.deliver()
        assert not box.dialect.in_transaction


class TestErrors:
    def test_the_first_is_raised_with_notes_of_the_others(self, box: Outbox) -> None:
        @outbox.handler("order.placed", name="fails")
        def fails(event: outbox.Event) -> None:
            raise ValueError(event.aggregate_id)

        emit(2)
        with pytest.raises(ValueError, match="0") as caught:
            testing.deliver()
        assert "Also: fails did not accept <Event order.placed Order:1" in caught.value.__notes__[1]

    def test_an_outcome_without_an_exception_is_raised_as_not_accepted(self, box: Outbox) -> None:
        class Crm:
            name = "crm"
            events = ("order.*",)

            def deliver(
                self, events: Iterable[outbox.Event], lease: outbox.Lease
            ) -> Iterator[tuple[outbox.Event, Outcome]]:
                for event in events:
                    yield event, outbox.Failed("402")

        outbox.add_destination(Crm())
        event = emit_one()
        with pytest.raises(testing.NotAccepted, match=r"crm did not accept <Event order.placed Order:0 .*>: 402"):
            testing.deliver()
        assert stored(event).status == FAILED

    def test_handlers_that_emit_for_ever_end_the_call(self, box: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("outbox.testing.deliver_here.MOST_BATCHES", 5)
        outbox.handler("order.*", name="again")(lambda _: emit(1))
        emit(1)
        with pytest.raises(testing.NotFinished, match="emits events that it handles itself"):
            testing.deliver()

    def test_an_expired_lease_of_another_worker_is_taken_over(self, box: Outbox) -> None:
        outbox.handler("order.placed", name="notes")(note)
        event = emit_one()
        claimed(box)
        assert testing.deliver() == 0
        testing.advance(minutes=1)
        assert testing.deliver() == 1
        assert stored(event).status == DELIVERED
