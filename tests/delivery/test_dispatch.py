"""dispatch: destinations get their events in threads, outside any transaction, and return an outcome for each."""

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from threading import Event as Gate
from typing import Any

import pytest

import outbox
from outbox.core import Outbox
from outbox.destinations.outcome import Delivered, Failed, Outcome, Retry
from outbox.events.event import Event
from outbox.storage.models import DELIVERED, FAILED, PENDING
from outbox.throttle.destination_throttle import DestinationThrottle
from tests.conftest import Configure, Note
from tests.support.servers import PATIENCE_SECONDS
from tests.support.table import (
    at_work,
    becomes_true,
    emit,
    emit_one,
    error_of,
    let_pass,
    on_postgres,
    passes,
    statuses,
    stored,
)

Deliver = Callable[[Iterable[Event]], Iterable[tuple[Event, Outcome]]]


class Destination:
    """A destination that delivers as the test says."""

    def __init__(self, deliver: Deliver, name: str = "destination") -> None:
        self._deliver = deliver
        self.name = name

    def deliver(self, events: Iterable[Event], lease: outbox.Lease) -> Iterable[tuple[Event, Outcome]]:
        return self._deliver(events)

    @property
    def events(self) -> tuple[str, ...]:
        return ("order.*",)


def refuse(event: Event) -> None:
    raise ValueError(f"not {event.aggregate_id}")


def take_all(events: Iterable[Event]) -> Iterator[tuple[Event, Outcome]]:
    for event in events:
        yield event, Delivered()


class TestDestinations:
    def test_one_may_take_all_events_before_it_returns_an_outcome(self, box: Outbox) -> None:
        def pipeline(events: Iterable[Event]) -> Iterator[tuple[Event, Outcome]]:
            for event in reversed(list(events)):
                yield event, Delivered()

        box.registry.add(Destination(pipeline))
        emit(10)
        box.process_pending_events()
        assert statuses() == {DELIVERED: 10}

    def test_each_event_gets_its_own_outcome(self, box: Outbox) -> None:
        def judge(events: Iterable[Event]) -> Iterator[tuple[Event, Outcome]]:
            outcomes = [Delivered(), Retry("no"), Failed("never"), outbox.Unavailable("down")]
            yield from zip(events, outcomes, strict=True)

        box.registry.add(Destination(judge))
        events = emit(4)
        box.process_pending_events()
        assert [(stored(event).status, stored(event).attempts) for event in events] == [
            (DELIVERED, 1),
            (PENDING, 1),
            (FAILED, 1),
            (PENDING, 0),
        ]

    def test_outcomes_and_how_long_each_took_are_counted_by_destination(self, box: Outbox) -> None:
        box.registry.add(Destination(take_all))
        box.registry.add(Destination(lambda events: [(event, Retry("no")) for event in events], "other"))
        emit(3)
        box.process_pending_events()
        series = {(name, *labels): count for (name, labels), count in box.counters.take().items()}
        assert series["outcomes", ("destination", "destination"), ("outcome", "delivered")] == 3
        assert series["outcomes", ("destination", "other"), ("outcome", "retry")] == 3
        for name in ("destination", "other"):
            timed = [key for key in series if key[:2] == ("send_bucket", ("destination", name))]
            assert sum(series[key] for key in timed) == 3

    @on_postgres
    def test_events_whose_sequence_numbers_are_equal_are_told_apart(self, box: Outbox, database: Any) -> None:
        outbox.handler("order.*", name="particular")(lambda event: refuse(event) if event.aggregate_id == "1" else None)
        outbox.handler("order.*", name="content")(lambda _: None)
        refused = outbox.emit("Order", 1, "order.placed")
        database.execute_sql("ALTER TABLE outbox_event ALTER COLUMN seq RESTART")
        taken = outbox.emit("Order", 2, "order.placed")
        assert refused.seq == taken.seq
        box.process_pending_events()
        assert (stored(refused).status, stored(refused).attempts) == (PENDING, 1)
        assert (stored(taken).status, stored(taken).attempts) == (DELIVERED, 1)

    def test_events_that_one_took_without_an_outcome_are_tried_again(self, box: Outbox) -> None:
        box.registry.add(Destination(lambda events: [(event, Delivered()) for event in list(events)[1:]]))
        forgotten, other = emit(2)
        box.process_pending_events()
        assert stored(other).status == DELIVERED
        row = stored(forgotten)
        assert (row.status, row.attempts) == (PENDING, 1)
        assert row.error_message == "destination: the destination returned no outcome"

    def test_one_that_raises_costs_an_attempt_only_for_the_events_it_had_taken(self, box: Outbox) -> None:
        def break_down(events: Iterable[Event]) -> Iterator[tuple[Event, Outcome]]:
            first, _second = iterator = [next(taken := iter(events)), next(taken)]
            yield first, Delivered()
            raise OSError(f"broken after {len(iterator)}")

        box.registry.add(Destination(break_down))
        done, begun, *others = emit(5)
        box.process_pending_events()
        assert stored(done).status == DELIVERED
        assert stored(begun).error_message == "destination: OSError: broken after 2"
        assert {(stored(event).status, stored(event).attempts) for event in others} == {(PENDING, 0)}
        assert box.counters["released"] == 3

    def test_a_cancellation_that_leaks_out_of_one_is_its_own_failure_and_stops_no_other(self, box: Outbox) -> None:
        def cancelled(events: Iterable[Event]) -> Iterator[tuple[Event, Outcome]]:
            yield next(iter(events)), Delivered()
            next(iter(events))
            raise asyncio.CancelledError

        box.registry.add(Destination(cancelled))
        events = emit(3)
        assert box.process_pending_events()["processed"] == 3
        assert [(stored(event).status, stored(event).attempts) for event in events] == [
            (DELIVERED, 1), (PENDING, 1), (PENDING, 0)
        ]  # fmt: skip

    def test_one_that_raises_before_it_has_taken_any_event_is_tried_again_later_with_all(self, box: Outbox) -> None:
        """Without an outcome they would be due again at once, before all others, and no error would say why."""

        def connect(events: Iterable[Event]) -> Iterable[tuple[Event, Outcome]]:
            raise OSError("no connection")

        box.registry.add(Destination(connect))
        events = emit(3)
        box.process_pending_events()
        for event in events:
            row = stored(event)
            assert (row.status, row.attempts) == (PENDING, 1)
            assert row.error_message == "destination: OSError: no connection"
        assert box.process_pending_events() == {"processed": 0, "remaining": 0}

    @pytest.mark.parametrize("taken", [0, 2])
    def test_one_that_raises_unavailable_costs_no_attempt(self, box: Outbox, taken: int) -> None:
        def connect(events: Iterable[Event]) -> Iterable[tuple[Event, Outcome]]:
            for _ in zip(range(taken), events, strict=False):
                pass
            raise outbox.Unavailable("down for an hour", not_before=timedelta(hours=1))

        box.registry.add(Destination(connect))
        events = emit(2)
        box.process_pending_events()
        for event in events:
            row = stored(event)
            assert (row.status, row.attempts, row.error_message) == (PENDING, 0, "destination: down for an hour")
            assert row.next_attempt_at - row.updated_at > timedelta(minutes=59)

    def test_one_that_takes_none_is_put_off_at_no_cost(self, box: Outbox) -> None:
        box.registry.add(Destination(lambda events: []))
        box.registry.add(Destination(take_all, "other"))
        event = emit_one()
        box.process_pending_events()
        row = stored(event)
        assert (row.status, row.progress["other"]["state"]) == (PENDING, DELIVERED)
        assert row.progress["destination"].get("attempts", 0) == 0
        assert row.error_message == "destination: the destination took none of its events"
        assert box.process_pending_events() == {"processed": 0, "remaining": 0}

    def test_two_outcomes_for_one_event_are_an_error(self, box: Outbox) -> None:
        box.registry.add(Destination(lambda events: [(event, Delivered()) for event in events for _ in range(2)]))
        first, second = emit(2)
        box.process_pending_events()
        assert stored(first).status == DELIVERED
        assert "which it had not taken, or had returned one for before" in error_of(second)

    @pytest.mark.parametrize("answer", [None, "delivered", Retry("no", "soon")])  # type: ignore[arg-type]
    def test_a_result_that_is_no_outcome_affects_no_other_destination(self, box: Outbox, answer: Outcome) -> None:
        box.registry.add(Destination(lambda events: [(event, answer) for event in events], "careless"))
        box.registry.add(Destination(take_all, "careful"))
        events = emit(3)
        box.process_pending_events()
        for event in events:
            row = stored(event)
            assert (row.status, row.progress["careful"]["state"]) == (PENDING, DELIVERED)
            assert row.progress["careless"]["attempts"] == 1


class TestDestinationsInThreads:
    def test_destinations_work_at_the_same_time(self, box: Outbox) -> None:
        meeting = threading.Barrier(2, timeout=PATIENCE_SECONDS)
        for name in ("a", "b"):
            outbox.handler("*", name=name)(lambda _: meeting.wait() and None)
        emit(1)
        box.process_pending_events()
        assert statuses() == {DELIVERED: 1}

    def test_inline_they_work_one_after_the_other_in_the_emitters_thread(self, configure: Configure) -> None:
        box = configure(dispatch="inline")
        threads = []
        for name in ("a", "b"):
            outbox.handler("*", name=name)(lambda _: threads.append(threading.current_thread()))
        emit(1)
        assert threads == [threading.current_thread()] * 2
        assert not box.delivery.uses_threads

    def test_each_sees_an_event_of_its_own(self, box: Outbox) -> None:
        seen: list[dict[str, int]] = []

        def spoil(event: Event) -> None:
            event.payload["n"] += 1
            seen.append(event.payload)

        for name in ("a", "b", "c"):
            outbox.handler("*", name=name)(spoil)
        emit(1, payload={"n": 1})
        box.process_pending_events()
        assert seen == [{"n": 2}] * 3

    def test_connections_of_its_threads_are_returned(self, box: Outbox, database: Any) -> None:
        for name in ("a", "b", "c"):
            outbox.handler("*", name=name)(lambda _: Note.create(text="seen"))
        emit(5)
        box.process_pending_events()
        assert Note.select().count() == 15
        box.database.close()
        assert len(database._in_use) == 0

    def test_an_interrupt_in_any_of_them_reaches_the_caller_after_all_is_settled(self, box: Outbox) -> None:
        for name, handler in (("taker", lambda _: None), ("interrupted", interrupt)):
            outbox.handler("*", name=name)(handler)
        events = emit(3)
        with pytest.raises(KeyboardInterrupt):
            box.process_pending_events()
        hit, *others = [stored(event) for event in events]
        assert hit.progress["interrupted"]["error"] == "KeyboardInterrupt"
        assert {row.progress["taker"]["state"] for row in (hit, *others)} == {DELIVERED}
        assert {row.status for row in (hit, *others)} == {PENDING}
        assert {row.progress["interrupted"].get("attempts", 0) for row in others} == {0}


class TestTransactions:
    def test_none_is_open_while_a_handler_runs(self, box: Outbox) -> None:
        open_ones: list[bool] = []
        for name in ("a", "b"):
            outbox.handler("*", name=name)(lambda _: open_ones.append(box.dialect.in_transaction))
        emit(2)
        box.process_pending_events()
        assert open_ones == [False] * 4

    def test_one_that_a_handler_left_open_is_rolled_back_and_costs_an_attempt(self, box: Outbox) -> None:
        @outbox.handler("order.*", name="forgetful")
        def handle(event: Event) -> None:
            if event.attempt == 1:
                box.database.begin()
                Note.create(text="lost")

        event = emit_one()
        box.process_pending_events()
        row = stored(event)
        assert (row.status, row.attempts, Note.select().count()) == (PENDING, 1, 0)
        assert row.error_message == "forgetful: a transaction was left open; it was rolled back"
        let_pass(hours=1)
        box.process_pending_events()
        assert stored(event).status == DELIVERED

    def test_one_that_a_destination_left_open_when_it_raised_does_not_swallow_the_outcome(self, box: Outbox) -> None:
        def deliver(events: Iterable[Event]) -> Iterator[tuple[Event, Outcome]]:
            for event in events:
                box.database.begin()
                Note.create(text="lost")
                raise RuntimeError(f"not {event.aggregate_id}")
            yield from ()

        outbox.add_destination(Destination(deliver))
        event = emit_one()
        box.process_pending_events()
        assert not box.dialect.in_transaction
        assert (stored(event).status, stored(event).attempts, Note.select().count()) == (PENDING, 1, 0)
        assert error_of(event) == "destination: RuntimeError: not 0"

    def test_one_that_only_peewee_counts_does_not_affect_later_events(self, box: Outbox) -> None:
        @outbox.handler("order.*", name="forgetful")
        def handle(event: Event) -> None:
            if event.aggregate_id == "0":
                box.database.atomic().__enter__()
            Note.create(text=event.aggregate_id)

        first, *others = emit(3)
        box.process_pending_events()
        assert stored(first).status == PENDING
        assert {stored(event).status for event in others} == {DELIVERED}
        assert {note.text for note in Note.select()} == {"1", "2"}
        assert not box.database.in_transaction()


class TestStopping:
    def test_what_has_not_begun_is_given_back_at_no_cost(self, box: Outbox) -> None:
        outbox.handler("*", name="last")(lambda _: box.stopping.set())
        begun, *others = emit(3)
        box.process_pending_events()
        assert (stored(begun).status, stored(begun).attempts) == (DELIVERED, 1)
        assert {(stored(event).status, stored(event).attempts) for event in others} == {(PENDING, 0)}
        assert {stored(event).lease_id for event in others} == {None}

    def test_the_outcome_of_one_destination_is_written_though_another_did_not_begin(self, box: Outbox) -> None:
        called: list[str] = []
        begun, gate = Gate(), Gate()

        @outbox.handler("*", name="busy")
        def busy(event: Event) -> None:
            called.append(f"busy {event.aggregate_id}")
            begun.set()
            passes(gate)

        @outbox.handler("*", name="quick")
        def quick(event: Event) -> None:
            called.append(f"quick {event.aggregate_id}")
            if event.aggregate_id == "2":
                passes(begun)
                box.stopping.set()
                gate.set()

        events = emit(3)
        box.process_pending_events()
        assert stored(events[0]).status == DELIVERED
        assert statuses() == {DELIVERED: 1, PENDING: 2}
        assert {stored(event).attempts for event in events[1:]} == {0}
        box.stopping.clear()
        box.process_pending_events()
        assert statuses() == {DELIVERED: 3}
        assert sorted(called) == [f"{name} {number}" for name in ("busy", "quick") for number in range(3)]


class TestSettling:
    def test_a_destination_that_is_done_settles_its_events_while_another_is_at_work(self, box: Outbox) -> None:
        gate = Gate()
        outbox.handler("slow", name="slow")(lambda _: passes(gate))
        outbox.handler("fast", name="fast")(lambda _: None)
        slow, *_ = emit(1, "slow"), emit(5, "fast")
        with at_work(box, gate):
            becomes_true(lambda: statuses()[DELIVERED] == 5)
            assert stored(slow[0]).status == "sending"
        assert statuses() == {DELIVERED: 6}


def interrupt(_: Event) -> None:
    raise KeyboardInterrupt


def test_a_call_that_was_interrupted_says_nothing_about_how_fast_its_destination_is(
    box: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the rate that is measured would put off the next events by as long as the call took."""
    measured: list[int] = []
    monkeypatch.setattr(DestinationThrottle, "measure_speed", lambda _throttle, events, *_: measured.append(events))
    calls: list[str] = []

    @outbox.handler("*", name="moody")
    def handle(event: Event) -> None:
        calls.append(event.aggregate_id)
        if event.aggregate_id == "2":
            raise KeyboardInterrupt

    emit(4)
    with pytest.raises(KeyboardInterrupt):
        box.process_pending_events()
    assert (calls, measured) == (["0", "1", "2"], [2])
