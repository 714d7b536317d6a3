"""Handlers: what they get, and what becomes of the event when they return or raise."""

import asyncio
import concurrent.futures
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import outbox
from outbox.core import Outbox
from outbox.destinations.outcome import exception_of
from outbox.storage.models import DELIVERED, FAILED, PENDING
from outbox.testing import make_event
from outbox.text import ERROR_LENGTH
from tests.conftest import Note
from tests.support.table import emit, emit_one, error_of, let_pass, statuses, stored


def failing_with(error: BaseException) -> Callable[[outbox.Event], None]:
    """Register a handler called `failing` that always raises this."""

    @outbox.handler("*", name="failing")
    def handle(_: outbox.Event) -> None:
        raise error

    return handle


@pytest.mark.parametrize("error", [outbox.Reject("no"), outbox.RetryLater(1), outbox.Unavailable("gone"), ValueError()])
def test_an_outcome_keeps_the_exception_that_it_was_made_from(box: Outbox, error: Exception) -> None:
    failing_with(error)
    (handler,) = box.registry.destinations.values()
    outcomes = [outcome for _, outcome in handler.deliver([make_event("order.placed")], outbox.Lease.lasting(30))]
    assert [exception_of(outcome) for outcome in outcomes] == [error]


class TestTheEvent:
    def test_has_all_its_fields(self, box: Outbox) -> None:
        got: list[outbox.Event] = []
        outbox.handler("*", name="taker")(got.append)
        emitted = outbox.emit(
            "Order",
            7,
            "order.placed",
            {"total": "9.90", "naïve": ["日本", None, 1.5]},
            idempotency_key="key",
            headers={"traceparent": "00-1"},
            correlation_id="c-1",
            tenant_id="t-1",
            max_attempts=3,
        )
        box.process_pending_events()
        (event,) = got
        assert (event.id, event.seq) == (emitted.id, emitted.seq)
        assert (event.aggregate_type, event.aggregate_id, event.event_type) == ("Order", "7", "order.placed")
        assert event.payload == {"total": "9.90", "naïve": ["日本", None, 1.5]}
        assert event.body == '{"total":"9.90","naïve":["日本",null,1.5]}'.encode()
        assert event.headers == {"traceparent": "00-1"}
        assert (event.idempotency_key, event.correlation_id, event.tenant_id) == ("key", "c-1", "t-1")
        assert (event.attempt, event.max_attempts) == (1, 3)
        assert event.created_at == emitted.created_at

    def test_without_payload_and_headers_it_has_empty_ones(self, box: Outbox) -> None:
        got: list[outbox.Event] = []
        outbox.handler("*", name="taker")(got.append)
        emit(1)
        box.process_pending_events()
        assert (got[0].payload, got[0].headers, got[0].body) == ({}, {}, b"{}")

    def test_what_a_handler_emits_inherits_its_correlation(self, box: Outbox) -> None:
        outbox.handler("order.*", name="taker")(lambda _: emit(1, "mail.sent"))
        emit(1, correlation_id="c-1", tenant_id="t-1")
        box.process_pending_events()
        mail = outbox.OutboxEvent.get(outbox.OutboxEvent.event_type == "mail.sent")
        assert (mail.correlation_id, mail.tenant_id) == ("c-1", "t-1")


class TestSeveralHandlers:
    def test_one_that_succeeded_is_not_called_again_when_another_is_retried(self, box: Outbox) -> None:
        attempts: dict[str, list[int]] = {"good": [], "bad": []}
        outbox.handler("*", name="good")(lambda event: attempts["good"].append(event.attempt))

        @outbox.handler("*", name="bad")
        def bad(event: outbox.Event) -> None:
            attempts["bad"].append(event.attempt)
            if event.attempt < 3:
                raise ValueError("no")

        event = emit_one()
        for _ in range(4):
            box.process_pending_events()
            let_pass(hours=1)
        assert attempts == {"good": [1], "bad": [1, 2, 3]}
        assert (stored(event).status, stored(event).progress) == (DELIVERED, None)

    def test_each_has_its_own_backoff_and_the_event_is_due_at_the_earliest(self, box: Outbox) -> None:
        def wait(minutes: int) -> Callable[[outbox.Event], None]:
            def handle(_: outbox.Event) -> None:
                raise outbox.RetryLater(timedelta(minutes=minutes))

            return handle

        for minutes in (10, 20):
            outbox.handler("*", name=f"{minutes} minutes")(wait(minutes))
        event = emit_one()
        box.process_pending_events()
        assert stored(event).next_attempt_at == not_before(event, "10 minutes")
        let_pass(minutes=11)
        box.process_pending_events()
        attempts = {name: entry["attempts"] for name, entry in stored(event).progress.items()}
        assert attempts == {"10 minutes": 2, "20 minutes": 1}
        assert stored(event).next_attempt_at == not_before(event, "20 minutes")

    def test_the_event_fails_when_all_have_ended_and_one_failed(self, box: Outbox) -> None:
        outbox.handler("*", name="good")(lambda _: None)
        failing_with(ValueError("no"))
        event = emit_one(max_attempts=2)
        box.process_pending_events()
        assert stored(event).status == PENDING
        let_pass(hours=1)
        box.process_pending_events()
        row = stored(event)
        assert (row.status, row.attempts, row.error_message) == (FAILED, 2, "failing: ValueError: no")
        assert row.progress["good"]["state"] == DELIVERED


class TestWhatAHandlerMayRaise:
    def test_reject_fails_at_once(self, box: Outbox) -> None:
        failing_with(outbox.Reject("wrong address"))
        event = emit_one()
        box.process_pending_events()
        row = stored(event)
        assert (row.status, row.attempts, row.error_message) == (FAILED, 1, "failing: Reject: wrong address")

    @pytest.mark.parametrize("after", [timedelta(minutes=7), 420, 420.0])
    def test_retry_later_waits_as_long_as_asked_and_costs_an_attempt(
        self, box: Outbox, after: timedelta | float
    ) -> None:
        failing_with(outbox.RetryLater(after, "busy"))
        event = emit_one()
        box.process_pending_events()
        row = stored(event)
        assert (row.status, row.attempts, row.error_message) == (PENDING, 1, "failing: busy")
        assert abs(row.next_attempt_at - row.updated_at - timedelta(minutes=7)) < timedelta(seconds=5)

    def test_retry_later_without_a_time_waits_the_usual_backoff_and_ends_like_any_retry(self, box: Outbox) -> None:
        failing_with(outbox.RetryLater())
        event = emit_one(max_attempts=2)
        box.process_pending_events()
        row = stored(event)
        assert abs(row.next_attempt_at - row.updated_at - timedelta(minutes=1)) < timedelta(seconds=5)
        let_pass(hours=1)
        box.process_pending_events()
        assert stored(event).status == FAILED

    def test_unavailable_costs_no_attempt_however_often(self, box: Outbox) -> None:
        failing_with(outbox.Unavailable("mail server down"))
        event = emit_one(max_attempts=1)
        for _ in range(5):
            box.process_pending_events()
            let_pass(hours=1)
        row = stored(event)
        assert (row.status, row.attempts, row.error_message) == (PENDING, 0, "failing: mail server down")

    @pytest.mark.parametrize(("hours", "status"), [(71, PENDING), (73, FAILED)])
    def test_unavailable_ends_at_the_maximum_age(self, box: Outbox, hours: int, status: str) -> None:
        failing_with(outbox.Unavailable("down"))
        event = emit_one()
        box.process_pending_events()
        let_pass(hours=hours)
        box.process_pending_events()
        assert stored(event).status == status

    def test_unavailable_may_be_given_the_exception_itself(self, box: Outbox) -> None:
        failing_with(outbox.Unavailable(ConnectionError("refused")))
        event = emit_one()
        box.process_pending_events()
        assert (stored(event).status, stored(event).attempts) == (PENDING, 0)
        assert error_of(event) == "failing: ConnectionError: refused"

    def test_unavailable_may_name_its_own_time(self, box: Outbox) -> None:
        at = datetime.now(UTC) + timedelta(days=1)
        failing_with(outbox.Unavailable("closed", not_before=at))
        event = emit_one()
        box.process_pending_events()
        assert stored(event).next_attempt_at == at

    @pytest.mark.parametrize(
        "mistake",
        [
            lambda: outbox.RetryLater("soon"),  # type: ignore[arg-type]
            lambda: outbox.RetryLater(float("nan")),
            lambda: outbox.Unavailable("down", not_before=60),  # type: ignore[arg-type]
            lambda: outbox.Unavailable("down", not_before=datetime(2030, 1, 1)),  # noqa: DTZ001
        ],
    )
    def test_an_invalid_time_costs_the_event_an_attempt_and_does_not_affect_others(
        self, box: Outbox, mistake: Callable[[], Exception]
    ) -> None:
        @outbox.handler("*", name="mistaken")
        def handle(event: outbox.Event) -> None:
            if event.aggregate_id == "1":
                raise mistake()

        before, wrong, behind = emit(3)
        box.process_pending_events()
        box.process_pending_events()
        assert {stored(event).status for event in (before, behind)} == {DELIVERED}
        assert (stored(wrong).status, stored(wrong).attempts) == (PENDING, 1)
        assert "Error: " in error_of(wrong)


class TestOtherErrors:
    def test_system_exit_is_a_failure_like_any_other(self, box: Outbox) -> None:
        failing_with(SystemExit(3))
        event = emit_one()
        box.process_pending_events()
        row = stored(event)
        assert (row.status, row.attempts, row.error_message) == (PENDING, 1, "failing: SystemExit: 3")

    @pytest.mark.parametrize("error", [asyncio.CancelledError(), concurrent.futures.CancelledError()])
    def test_a_cancelled_error_fails_its_own_event_alone(self, box: Outbox, error: BaseException) -> None:
        @outbox.handler("order.*", name="asynchronous")
        def handle(event: outbox.Event) -> None:
            if event.aggregate_id == "1":
                raise error

        events = emit(50)
        assert box.process_pending_events()["processed"] == 50
        assert statuses() == {DELIVERED: 49, PENDING: 1}
        assert (stored(events[1]).attempts, "CancelledError" in error_of(events[1])) == (1, True)

    def test_an_interrupt_costs_its_own_event_an_attempt_gives_back_the_others_and_goes_on(self, box: Outbox) -> None:
        failing_with(KeyboardInterrupt())
        hit, *others = emit(3)
        with pytest.raises(KeyboardInterrupt):
            box.process_pending_events()
        row = stored(hit)
        assert (row.status, row.attempts, row.error_message) == (PENDING, 1, "failing: KeyboardInterrupt")
        assert {(stored(event).status, stored(event).attempts) for event in others} == {(PENDING, 0)}

    @pytest.mark.parametrize(
        ("error", "text"),
        [
            (ValueError("a\x00b"), "ValueError: a\N{REPLACEMENT CHARACTER}b"),
            (ValueError("a\ud800b"), "ValueError: a?b"),
            (ValueError(), "ValueError"),
            (ValueError("日本"), "ValueError: 日本"),
        ],
    )
    def test_any_text_of_an_error_is_stored(self, box: Outbox, error: ValueError, text: str) -> None:
        failing_with(error)
        event = emit_one()
        box.process_pending_events()
        row = stored(event)
        assert row.error_message == f"failing: {text}"
        assert row.progress["failing"]["error"] == text

    def test_a_long_error_is_cut(self, box: Outbox) -> None:
        failing_with(ValueError("x" * 1_000_000))
        event = emit_one()
        box.process_pending_events()
        assert len(error_of(event)) == ERROR_LENGTH

    def test_an_error_that_cannot_be_read_is_still_counted(self, box: Outbox) -> None:
        class UnreadableError(Exception):
            def __str__(self) -> str:
                raise RuntimeError

        failing_with(UnreadableError())
        event = emit_one()
        box.process_pending_events()
        assert stored(event).error_message == "failing: UnreadableError: (its message could not be read)"


class TestTransactionsOfItsOwn:
    def test_a_handler_may_open_and_commit_them(self, box: Outbox) -> None:
        @outbox.handler("order.*", name="writer")
        def handle(event: outbox.Event) -> None:
            with box.database.atomic():
                Note.create(text=event.aggregate_id)
                with box.database.atomic():
                    outbox.emit("Note", event.aggregate_id, "note.created")

        outbox.handler("note.*", name="reader")(lambda _: None)
        emit(3)
        while box.process_pending_events()["processed"]:
            pass
        assert Note.select().count() == 3
        assert statuses() == {DELIVERED: 6}

    def test_what_it_wrote_before_it_raised_is_rolled_back(self, box: Outbox) -> None:
        @outbox.handler("order.*", name="writer")
        def handle(_: outbox.Event) -> None:
            with box.database.atomic():
                Note.create(text="lost")
                outbox.emit("Note", 1, "note.created")
                raise ValueError("no")

        emit(1)
        box.process_pending_events()
        assert Note.select().count() == 0
        assert statuses() == {PENDING: 1}

    def test_an_error_of_the_database_leaves_the_worker_usable(self, box: Outbox) -> None:
        @outbox.handler("order.*", name="writer")
        def handle(event: outbox.Event) -> None:
            if event.aggregate_id == "0":
                box.database.execute_sql("SELECT nothing FROM nowhere")
            Note.create(text=event.aggregate_id)

        first, second = emit(2)
        box.process_pending_events()
        assert (stored(first).status, stored(second).status) == (PENDING, DELIVERED)

    def test_a_handler_may_close_the_connection(self, box: Outbox) -> None:
        outbox.handler("order.*", name="closer")(lambda _: box.database.close())
        emit(3)
        assert box.process_pending_events() == {"processed": 3, "remaining": 0}
        assert statuses() == {DELIVERED: 3}


def not_before(event: outbox.OutboxEvent, name: str) -> Any:
    return datetime.fromisoformat(stored(event).progress[name]["not_before"])


class TestWhatIsLogged:
    def test_a_traceback_once_for_each_kind_of_error(self, box: Outbox, caplog: pytest.LogCaptureFixture) -> None:
        @outbox.handler("order.*", name="broken")
        def handle(event: outbox.Event) -> None:
            raise KeyError(event.aggregate_id) if event.aggregate_id < "2" else ValueError(event.aggregate_id)

        emit(4)
        with caplog.at_level("WARNING", "outbox"):
            box.process_pending_events()
        shown = [record.exc_info[0] for record in caplog.records if record.exc_info]
        assert shown == [KeyError, ValueError]

    def test_each_event_that_is_put_off_with_its_attempts(self, box: Outbox, caplog: pytest.LogCaptureFixture) -> None:
        @outbox.handler("order.*", name="broken")
        def handle(_: outbox.Event) -> None:
            raise ValueError("no luck")

        event = emit_one(max_attempts=7)
        box.process_pending_events()
        (line,) = [message for message in caplog.messages if message.startswith("put off")]
        assert "after 1 of 7 attempts" in line
        assert str(event.id) in line
        assert "broken: ValueError: no luck" in line
