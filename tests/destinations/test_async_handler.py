"""Handlers that are `async def`: awaited on one event loop of the process, many at once, under the same rules."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

import outbox
from outbox.core import Outbox
from outbox.destinations.async_handler import AsyncHandler
from outbox.destinations.outcome import Delivered, Failed, Retry
from outbox.destinations.protocol import Lease
from outbox.errors import Unavailable
from outbox.event_loop_thread import event_loop
from outbox.events.context import inherited_context
from outbox.storage.models import DELIVERED, PENDING
from tests.conftest import Configure
from tests.support.async_database import open_async
from tests.support.program import run_python
from tests.support.servers import PATIENCE_SECONDS, wait_until
from tests.support.table import emit, emit_one, error_of, stored


@pytest.fixture
def url(sqlite_url: str) -> str:
    """One database is enough where the database is not what is tested."""
    return sqlite_url


@pytest.fixture(autouse=True)
def _stopped_loop() -> Iterator[None]:
    yield
    event_loop.stop()


class Meeting:
    """Coroutines that wait until so many of them are under way at the same time."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._met = asyncio.Event()
        self.under_way = self.most = 0

    async def __call__(self, _: outbox.Event) -> None:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        if self.under_way == self._size:
            self._met.set()
        await asyncio.wait_for(self._met.wait(), PATIENCE_SECONDS)
        self.under_way -= 1


def register(**options: Any) -> Callable[[Any], Any]:
    return outbox.handler("order.*", name="async", **options)


class TestOutcomes:
    def test_a_handler_is_awaited_on_the_loop_and_its_event_delivered(self, box: Outbox) -> None:
        threads = []

        @register()
        async def handle(event: outbox.Event) -> None:
            await asyncio.sleep(0)
            threads.append((threading.current_thread().name, event.payload))

        one = emit_one(payload={"total": 20})
        box.process_pending_events()
        assert stored(one).status == DELIVERED
        assert threads == [("outbox-event-loop", {"total": 20})]

    @pytest.mark.parametrize(
        ("error", "outcome"),
        [
            (ValueError("no"), Retry),
            (SystemExit(1), Retry),
            (asyncio.CancelledError(), Retry),
            (outbox.Reject("never"), Failed),
            (outbox.Unavailable("down"), Unavailable),
        ],
        ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
    )
    def test_an_error_is_the_outcome_of_its_event_alone(
        self, box: Outbox, error: BaseException, outcome: type[Any]
    ) -> None:
        meeting = Meeting(3)

        async def handle(event: outbox.Event) -> None:
            await meeting(event)
            if event.aggregate_id == "1":
                raise error

        outcomes = deliver_directly(handle, 3)
        assert [type(outcomes[number]) for number in ("0", "1", "2")] == [Delivered, outcome, Delivered]

    def test_an_async_generator_is_still_refused(self, box: Outbox) -> None:
        @register()
        async def handle(_: outbox.Event) -> Any:
            yield

        one = emit_one()
        box.process_pending_events()
        assert stored(one).status == PENDING
        assert "returned a async_generator" in error_of(one)

    def test_an_awaited_result_that_is_still_to_be_awaited_is_refused(self) -> None:
        async def work() -> None: ...

        async def handle(_: outbox.Event) -> Any:
            return work()

        (outcome,) = deliver_directly(handle, 1).values()
        assert isinstance(outcome, Retry)
        assert "returned a coroutine" in outcome.error

    def test_each_call_has_the_context_of_its_event(self, box: Outbox) -> None:
        seen = {}
        meeting = Meeting(2)

        @register()
        async def handle(event: outbox.Event) -> None:
            await meeting(event)
            seen[event.correlation_id] = inherited_context()

        emit_one(correlation_id="first", tenant_id="a")
        emit_one(correlation_id="second", tenant_id="b")
        box.process_pending_events()
        assert seen == {"first": ("first", "a"), "second": ("second", "b")}


class TestManyAtOnce:
    def test_calls_run_side_by_side(self, box: Outbox) -> None:
        meeting = Meeting(50)

        @register()
        async def handle(event: outbox.Event) -> None:
            await meeting(event)

        emit(50)
        assert box.process_pending_events() == {"processed": 50, "remaining": 0}
        assert {event.status for event in outbox.OutboxEvent.select()} == {DELIVERED}

    def test_a_concurrency_limit_is_kept(self, box: Outbox) -> None:
        meeting = Meeting(2)

        @register(concurrency=2)
        async def handle(event: outbox.Event) -> None:
            await meeting(event)

        emit(6)
        box.process_pending_events()
        assert meeting.most == 2
        assert {event.status for event in outbox.OutboxEvent.select()} == {DELIVERED}

    def test_events_of_a_key_follow_each_other(self, box: Outbox) -> None:
        got: list[str] = []

        @register()
        async def handle(event: outbox.Event) -> None:
            await asyncio.sleep(0.001 * (5 - int(event.aggregate_id)))
            got.append(event.aggregate_id)

        emit(5, ordering_key="key")
        while box.process_pending_events()["processed"]:
            pass
        assert got == ["0", "1", "2", "3", "4"]

    def test_a_handler_may_await_an_emit_on_an_asynchronous_database(self, url: str, box: Outbox) -> None:
        database = open_async(url)
        outbox.configure(database=database, dispatch="off", publish_seconds=0)

        @register()
        async def handle(event: outbox.Event) -> None:
            async with database.atomic():
                await outbox.aemit("Invoice", event.aggregate_id, "invoice.written")

        emitting = box.emit_many([("Order", number, "order.placed") for number in range(3)])
        current: Any = outbox.current()
        assert current.process_pending_events()["processed"] == len(emitting)
        assert {event.event_type for event in outbox.OutboxEvent.select()} == {"order.placed", "invoice.written"}
        on_the_loop(database.close_pool)
        current.database.close_all()


class TestDeadline:
    def test_a_call_that_takes_too_long_is_cancelled_and_its_neighbours_are_not(self) -> None:
        cancelled = []

        async def handle(event: outbox.Event) -> None:
            if event.aggregate_id == "1":
                try:
                    await asyncio.wait_for(asyncio.Event().wait(), PATIENCE_SECONDS)
                finally:
                    cancelled.append(event.aggregate_id)

        outcomes = deliver_directly(handle, 3, seconds=1)
        assert cancelled == ["1"]
        assert [type(outcomes[number]) for number in ("0", "1", "2")] == [Delivered, Retry, Delivered]
        assert outcomes["1"].error == "the call took longer than OUTBOX_MAX_RUN_SECONDS, and was cancelled"

    def test_a_call_that_ignores_its_cancellation_keeps_the_thread_but_not_its_neighbours(self) -> None:
        go_on = threading.Event()

        async def handle(event: outbox.Event) -> None:
            while event.aggregate_id == "1" and not go_on.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.01)

        outcomes: dict[str, Any] = {}
        thread = threading.Thread(target=lambda: deliver_directly(handle, 3, seconds=1, into=outcomes))
        thread.start()
        assert wait_until(lambda: set(outcomes) == {"0", "2"})
        assert thread.is_alive()
        go_on.set()
        thread.join(PATIENCE_SECONDS)
        assert isinstance(outcomes["1"], Delivered)  # it has done its work after all

    @pytest.mark.usefixtures("usual_slices")
    def test_a_worker_counts_a_call_that_ignores_its_cancellation_as_stuck(self, configure: Configure) -> None:
        box = configure(lease_seconds=0.5, max_run_seconds=1)
        go_on = threading.Event()

        @register(concurrency=1)
        async def handle(_: outbox.Event) -> None:
            while not go_on.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.01)

        emit_one()
        box.drain()
        try:
            throttle = box.throttles.of(box.registry.destinations["async"])
            assert wait_until(lambda: throttle.stuck() is not None)
        finally:
            go_on.set()
        assert wait_until(lambda: throttle.stuck() is None)

    def test_an_interrupt_of_the_thread_cancels_its_calls(self) -> None:
        begun, cancelled = threading.Event(), threading.Event()

        async def handle(_: outbox.Event) -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        handler = AsyncHandler(handle, ["*"], "async")
        with pytest.raises(KeyboardInterrupt):
            next(handler.deliver(interrupted_after(begun), Lease.lasting(60, at_once=2)))
        assert cancelled.is_set()


def interrupted_after(begun: threading.Event) -> Iterator[outbox.Event]:
    yield received("0")
    assert begun.wait(PATIENCE_SECONDS)
    raise KeyboardInterrupt


class TestTheLoop:
    def test_a_blocking_call_is_named_while_it_blocks(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(event_loop, "_blocked_seconds", 0.01)

        def block() -> None:
            assert wait_until(lambda: "blocks the event loop" in caplog.text)

        async def handle(_: outbox.Event) -> None:
            block()

        deliver_directly(handle, 2)
        assert caplog.text.count("async blocks the event loop in") == 1
        assert "asyncio.to_thread" in caplog.text

    def test_stopping_cancels_what_runs_and_the_next_call_starts_another_loop(self) -> None:
        begun = threading.Event()

        async def forever(_: outbox.Event) -> None:
            begun.set()
            await asyncio.Event().wait()

        async def prompt(_: outbox.Event) -> None: ...

        outcomes: dict[str, Any] = {}
        thread = threading.Thread(target=lambda: deliver_directly(forever, 1, into=outcomes))
        thread.start()
        assert begun.wait(PATIENCE_SECONDS)
        event_loop.stop()
        thread.join(PATIENCE_SECONDS)
        assert isinstance(outcomes["0"], Retry)
        assert [type(each) for each in deliver_directly(prompt, 1).values()] == [Delivered]

    def test_a_handler_that_delivers_on_the_loop_is_told_to_use_a_thread(self) -> None:
        errors: list[BaseException] = []

        async def nested(_: outbox.Event) -> None:
            try:
                AsyncHandler(nested, ["*"], "nested").call(received("0"))
            except RuntimeError as error:
                errors.append(error)

        AsyncHandler(nested, ["*"], "async").call(received("0"))
        assert "asyncio.to_thread" in str(errors[0])

    def test_a_forked_child_has_a_loop_of_its_own_and_leaves_its_parents_alone(self) -> None:
        output = run_python(FORK)
        assert output.split() == ["parent", "child", "0", "parent"]


FORK = """
import os, sys, warnings
from outbox.event_loop_thread import event_loop
from threading import Event
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)  # from Python 3.12 on

def run(text):
    ended = Event()
    async def write():
        os.write(1, text.encode() + b"\\n")
    event_loop.create_task(write, lambda task: task.add_done_callback(lambda _: ended.set()))
    assert ended.wait(20)

run("parent")
child = os.fork()
if child == 0:
    run("child")
    os._exit(0)
print(os.waitpid(child, 0)[1], flush=True)
run("parent")
"""


def on_the_loop(coroutine: Callable[[], Any]) -> None:
    """Run a coroutine on the loop, and wait for its end."""
    ended = threading.Event()
    event_loop.create_task(coroutine, lambda task: task.add_done_callback(lambda _: ended.set()))
    assert ended.wait(PATIENCE_SECONDS)


def received(number: str) -> outbox.Event:
    """An event that was never in a table."""
    return outbox.Event.received(
        id=uuid4(), event_type="order.placed", aggregate_type="Order", aggregate_id=number, body="{}", headers="{}",
        correlation_id=None, tenant_id=None, created_at=datetime.now(UTC), attempt=1, max_attempts=5,
    )  # fmt: skip


def deliver_directly(
    function: Any, number: int, *, seconds: float = 60, into: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Deliver so many events to the function; return their outcomes by aggregate id."""
    outcomes = {} if into is None else into
    events = [received(str(each)) for each in range(number)]
    for event, outcome in AsyncHandler(function, ["*"], "async").deliver(events, Lease.lasting(seconds, at_once=100)):
        outcomes[event.aggregate_id] = outcome
    return outcomes
