"""Hooks of `outbox.on_failure`: what they are told, and that they harm nothing."""

import gc
import logging
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

import outbox
from outbox.core import Outbox
from outbox.delivery.failure_hooks import FailureHooks
from outbox.destinations.failure import Failure, FailureHook
from outbox.storage.models import DELIVERED, FAILED, PENDING
from tests.conftest import Configure
from tests.support.encryption import NEW
from tests.support.table import change, emit, emit_one, expire_leases, let_pass, stored


def collected(*, each_attempt: bool = False) -> list[Failure]:
    """Register a hook; return the failures that it is called with."""
    failures: list[Failure] = []
    outbox.on_failure(each_attempt=each_attempt)(failures.append)
    return failures


class TestWhatAHookIsTold:
    def test_the_event_the_destination_and_the_real_exception_with_its_traceback(self, box: Outbox) -> None:
        failures = collected()

        @outbox.handler("*", name="billing", max_attempts=1)
        def bill(event: outbox.Event) -> None:
            raise LookupError("no such customer")

        event = emit_one()
        box.process_pending_events()
        (failure,) = failures
        assert (failure.event.id, failure.destination, failure.attempts, failure.is_final) == (
            event.id,
            "billing",
            1,
            True,
        )
        assert failure.error == "LookupError: no such customer"
        assert isinstance(failure.exception, LookupError)
        assert [frame.name for frame in traceback.extract_tb(failure.exception.__traceback__)][-1] == "bill"

    def test_nothing_of_an_attempt_that_is_repeated_unless_it_asks(self, box: Outbox) -> None:
        final, every = collected(), collected(each_attempt=True)

        @outbox.handler("*", name="slow to learn")
        def handle(event: outbox.Event) -> None:
            match event.attempt:
                case 1:
                    raise outbox.RetryLater(1, "first")
                case 2:
                    raise ValueError("second")
            raise outbox.Reject("third")

        emit_one()
        for _ in range(3):
            box.process_pending_events()
            let_pass(hours=2)
        assert [(each.error, type(each.exception), each.attempts, each.is_final) for each in every] == [
            ("first", outbox.RetryLater, 1, False),
            ("ValueError: second", ValueError, 2, False),
            ("Reject: third", outbox.Reject, 3, True),
        ]
        assert [each.error for each in final] == ["Reject: third"]

    def test_nothing_of_a_success(self, box: Outbox) -> None:
        every = collected(each_attempt=True)
        outbox.handler("*", name="good")(lambda _: None)
        emit_one()
        box.process_pending_events()
        assert every == []

    def test_that_it_was_unavailable_with_what_it_raised(self, box: Outbox) -> None:
        every = collected(each_attempt=True)

        @outbox.handler("*", name="raises")
        def raises(_: outbox.Event) -> None:
            raise outbox.Unavailable("away")

        emit_one()
        box.process_pending_events()
        assert [(type(each.exception), each.attempts, each.is_final) for each in every] == [
            (outbox.Unavailable, 0, False)
        ]

    def test_each_destination_once_by_itself(self, box: Outbox) -> None:
        failures = collected()
        outbox.handler("*", name="good")(lambda _: None)

        def refuse(_: outbox.Event) -> None:
            raise ValueError("no")

        outbox.handler("*", name="bad", max_attempts=1)(refuse)
        outbox.handler("*", name="worse", max_attempts=2)(refuse)
        event = emit_one()
        box.process_pending_events()
        assert [each.destination for each in failures] == ["bad"]
        let_pass(hours=2)
        box.process_pending_events()
        assert [each.destination for each in failures] == ["bad", "worse"]
        assert stored(event).status == FAILED

    def test_what_destinations_return_has_the_exception_that_they_give_it(self, box: Outbox) -> None:
        failures = collected()
        cause = OSError("the disk")

        class Own:
            name, events, max_attempts = "own", ("*",), 1

            def deliver(self, events: Any, lease: outbox.Lease) -> Iterator[Any]:
                outcomes = iter(
                    [outbox.Failed("HTTP 410"), outbox.Failed("no", exception=cause), outbox.Retry(cause)]  # type: ignore[arg-type]
                )
                for event in events:
                    yield event, next(outcomes)

        outbox.add_destination(Own())
        emit(3)
        box.process_pending_events()
        assert [(each.error, each.exception) for each in failures] == [
            ("HTTP 410", None),
            ("no", cause),
            ("OSError: the disk", cause),
        ]

    def test_what_failed_without_a_call(self, configure: Configure) -> None:
        box = configure(unhandled="fail")
        failures = collected()
        outbox.handler("order.cancelled", name="other")(lambda _: None)
        event = emit_one()
        box.process_pending_events()
        assert [(each.event.id, each.exception, each.is_final) for each in failures] == [(event.id, None, True)]
        assert "OUTBOX_UNHANDLED=fail" in failures[0].error

    def test_an_event_that_killed_its_workers(self, box: Outbox) -> None:
        failures = collected()
        outbox.handler("*", name="deadly")(lambda _: None)
        event = emit_one()
        change(event, status="sending", attempts=5, lease_id=event.id)
        expire_leases(event)
        box.process_pending_events()
        assert [(each.destination, each.attempts) for each in failures] == [("deadly", 5)]
        assert "the worker died" in failures[0].error

    def test_the_payload_in_plain_text_although_it_is_encrypted_in_the_table(self, configure: Configure) -> None:
        box = configure(encryption_keys=NEW.text)
        failures = collected()

        @outbox.handler("*", name="bad")
        def bad(_: outbox.Event) -> None:
            raise outbox.Reject("no")

        emit_one(payload={"email": "ada@example.com"})
        box.process_pending_events()
        assert failures[0].event.payload == {"email": "ada@example.com"}

    def test_the_pattern_for_sentry(self, box: Outbox) -> None:
        sentry = Sentry()

        @outbox.on_failure
        def report(failure: outbox.Failure) -> None:
            tags = {"destination": failure.destination, "event_type": failure.event.event_type}
            if failure.exception is not None:
                sentry.capture_exception(failure.exception, tags=tags)
            else:
                sentry.capture_message(failure.error, level="error", tags=tags)

        @outbox.handler("order.*", name="billing", max_attempts=1)
        def bill(_: outbox.Event) -> None:
            raise KeyError("customer")

        emit_one("order.placed")
        box.process_pending_events()
        (((error,), options),) = sentry.captured
        assert isinstance(error, KeyError)
        assert error.__traceback__ is not None
        assert options == {"tags": {"destination": "billing", "event_type": "order.placed"}}


class Sentry:
    """Takes what sentry_sdk's functions of these names take."""

    def __init__(self) -> None:
        self.captured: list[tuple[Any, Any]] = []

    def capture_exception(self, *args: Any, **options: Any) -> None:
        self.captured.append((args, options))

    capture_message = capture_exception


class TestAHookHarmsNothing:
    @pytest.fixture(autouse=True)
    def _handlers(self) -> None:
        def refuse(event: outbox.Event) -> None:
            raise outbox.Reject("no")

        outbox.handler("bad", name="bad")(refuse)
        outbox.handler("good", name="good")(lambda _: None)

    @pytest.mark.parametrize("error", [ValueError("broken"), SystemExit(1), KeyboardInterrupt()], ids=repr)
    def test_if_it_raises(self, box: Outbox, error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
        @outbox.on_failure
        def broken(_: Failure) -> None:
            raise error

        failures = collected()
        events = [emit_one("bad"), emit_one("good"), emit_one("bad")]
        box.process_pending_events()
        assert [stored(each).status for each in events] == [FAILED, DELIVERED, FAILED]
        assert any("hook of outbox.on_failure" in line for line in caplog.messages)
        if isinstance(error, Exception):
            assert len(failures) == 2

    def test_if_it_hangs(self, box: Outbox) -> None:
        hangs = threading.Event()
        outbox.on_failure(lambda _: bool(hangs.wait(20)))
        try:
            for _ in range(2):
                events = [emit_one("bad"), emit_one("good")]
                while any(stored(each).status == PENDING for each in events):
                    box.drain()
                assert [stored(each).status for each in events] == [FAILED, DELIVERED]
            assert not box.delivery.failure_hooks.flush(0)
        finally:
            hangs.set()
        assert box.delivery.failure_hooks.flush(20)

    def test_if_it_leaves_a_transaction_open(self, box: Outbox) -> None:
        outbox.on_failure(lambda _: outbox.current().database.begin())
        for _ in range(2):
            event = emit_one("bad")
            box.process_pending_events()
            assert stored(event).status == FAILED

    def test_without_hooks_no_exception_is_kept(self, box: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
        kept = seen_exceptions(monkeypatch)
        emit_one("bad")
        box.process_pending_events()
        assert kept == [None]

    def test_what_was_raised_is_forgotten_once_it_was_reported(self, box: Outbox) -> None:
        raised: list[weakref.ref[BaseException]] = []

        class NotLogged(outbox.Reject):
            pass

        def made() -> NotLogged:
            error = NotLogged("no")
            raised.append(weakref.ref(error))
            return error

        @outbox.handler("worse", name="worse")
        def worse(_: outbox.Event) -> None:
            raise made()

        outbox.on_failure(lambda _: None)
        emit_one("worse")
        gc.disable()
        try:
            box.process_pending_events()
            assert [each() for each in raised] == [None]
        finally:
            gc.enable()


def seen_exceptions(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was kept of exceptions when outcomes were logged."""
    from outbox.delivery import settle

    kept: list[Any] = []
    monkeypatch.setattr(settle, "log_outcomes", lambda others: kept.extend(each.exceptions for each, _ in others))
    return kept


class TestTheQueue:
    def test_drops_what_is_too_much_and_says_so_once(self, box: Outbox, caplog: pytest.LogCaptureFixture) -> None:
        hangs, called = threading.Event(), []
        started = threading.Event()

        def hook(failure: Failure) -> None:
            started.set()
            hangs.wait(20)
            called.append(failure.attempts)

        hooks = FailureHooks(box.database, runs_in_background=True, most_waiting=2)
        with caplog.at_level(logging.ERROR):
            hooks.report([FailureHook(hook)], [failure(0)])
            assert started.wait(20)
            hooks.report([FailureHook(hook)], map(failure, range(1, 6)))
        hangs.set()
        assert hooks.flush(20)
        assert called == [0, 1, 2]
        assert len([line for line in caplog.messages if "behind by 2 failures" in line]) == 1

    def test_without_threads_the_hook_runs_where_the_event_is_delivered(self, configure: Configure) -> None:
        box = configure(dispatch="inline")
        threads: list[str] = []
        outbox.on_failure(lambda _: threads.append(threading.current_thread().name))

        @outbox.handler("*", name="bad")
        def bad(_: outbox.Event) -> None:
            raise outbox.Reject("no")

        with box.database.atomic():
            emit_one()
        assert threads == [threading.current_thread().name]


def failure(number: int) -> Failure:
    return Failure(event=None, destination="x", error="no", exception=None, attempts=number, is_final=True)  # type: ignore[arg-type]


async def awaited(_: Failure) -> None: ...


@pytest.mark.parametrize(
    ("hook", "why"),
    [(awaited, "coroutine"), (lambda: None, "one argument"), ("nothing", "takes a function")],
    ids=["coroutine", "no argument", "text"],
)
def test_what_can_not_be_called_is_refused(hook: Callable[..., Any], why: str) -> None:
    with pytest.raises(outbox.RegistrationError, match=why):
        outbox.on_failure(hook)


def test_a_wait_that_was_asked_for_is_a_timedelta_still(box: Outbox) -> None:
    assert outbox.Retry("x", timedelta(1)).exception is None
    assert outbox.Retry("x", exception=ValueError()) == outbox.Retry("x")
