"""A worker does not wait for a slow destination: that goes on by itself, keeps its lease, and settles its outcomes."""

import contextlib
import logging
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import islice, pairwise
from threading import Event as Gate
from typing import Any

import pytest

import outbox
from outbox.core import Outbox
from outbox.delivery.claim import claim
from outbox.delivery.context import WaitTimes
from outbox.destinations.limits import Limits
from outbox.destinations.outcome import Delivered, Outcome
from outbox.events.event import Event
from outbox.storage import timestamp
from outbox.storage.models import DELIVERED, FAILED, PENDING, SENDING, OutboxEvent
from outbox.throttle.circuit_breaker import OpenTimes
from outbox.throttle.delivery_mode import DeliveryMode
from tests.conftest import Configure
from tests.support.notifications import replace_wake
from tests.support.outbox_parts import replace_delivery, replace_throttles
from tests.support.processes import MakeStage, make_stage
from tests.support.servers import PATIENCE_SECONDS
from tests.support.table import (
    another,
    becomes_true,
    change,
    emit,
    emit_one,
    error_of,
    let_pass,
    passes,
    sees_leases,
    statuses,
    stored,
)

__all__ = ["make_stage"]

pytestmark = pytest.mark.usefixtures("usual_slices")

# Longer than any test: nothing is renewed, and no slice is ended, but the first.
LONG_LEASE = {"lease_seconds": 3_600, "max_run_seconds": 3_600}
# What is to be tried again is due at once.
SOON = {"backoff_base_seconds": 0.0}


class Slow:
    """A handler that returns from none of its events until its gate opens."""

    def __init__(self, event_type: str = "slow", name: str | None = None, **limits: Any) -> None:
        self.gate = Gate()
        self.begun: list[str] = []
        self.ended: list[str] = []
        outbox.handler(event_type, name=event_type if name is None else name, **limits)(self._handle)

    def _handle(self, event: outbox.Event) -> None:
        self.begun.append(event.aggregate_id)
        passes(self.gate)
        self.ended.append(event.aggregate_id)


class Pair:
    """A destination that takes two events at once, and returns an outcome for each when its gate opens."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.gates = [Gate(), Gate()]

    @property
    def events(self) -> tuple[str, ...]:
        return (self.name,)

    def deliver(self, events: Iterable[Event], lease: outbox.Lease) -> Iterator[tuple[Event, Outcome]]:
        for event, answered in zip(list(islice(events, 2)), self.gates, strict=True):
            passes(answered)
            yield event, Delivered()

    def open(self) -> None:
        for each in self.gates:
            each.set()


def patient(box: Outbox) -> Outbox:
    """Return the outbox, whose workers and throttles wait from now on for as long as it takes."""
    replace_delivery(box, waits=WaitTimes(drain_seconds=PATIENCE_SECONDS))
    return replace_throttles(box, patience_seconds=PATIENCE_SECONDS, began_lately_seconds=PATIENCE_SECONDS)


def slice_ends(given_back: OutboxEvent) -> None:
    """Wait until the lease keeper has ended the batch's time slice; it does nothing more for a while."""
    becomes_true(lambda: stored(given_back).status == PENDING)


@contextlib.contextmanager
def slow(event_type: str = "slow", **options: Any) -> Iterator[Slow]:
    """Register a slow handler whose gate opens at the end of the block."""
    handler = Slow(event_type, **options)
    try:
        yield handler
    finally:
        handler.gate.set()


def is_over(box: Outbox) -> bool:
    return box.delivery.quarantine.wait_until_idle(0) and not box.delivery.leases._batches


def drained(box: Outbox) -> Counter[str]:
    """Drain, and return how many events are in which state."""
    box.drain()
    return statuses()


def drain(box: Outbox) -> None:
    box.drain()


def go(box: Outbox) -> int:
    """Drain as a fresh worker process would, which remembers nothing of what its gates have seen."""
    return another(box).drain()


class TestASlowDestinationInADrain:
    def test_does_not_hold_up_the_worker_and_settles_by_itself(self, configure: Configure) -> None:
        box = configure(**LONG_LEASE)
        event = emit_one("slow")
        with slow() as handler:
            assert box.drain() == 1
            assert (stored(event).status, handler.ended, is_over(box)) == (SENDING, [], False)
            handler.gate.set()
            becomes_true(lambda: stored(event).status == DELIVERED)
        becomes_true(lambda: is_over(box))
        assert (stored(event).attempts, stored(event).lease_id, handler.begun) == (1, None, ["0"])
        assert (box.counters["delivered"], box.counters["fenced"]) == (1, 0)

    def test_keeps_its_lease_for_as_long_as_it_goes_on(self, configure: Configure) -> None:
        box = configure(lease_seconds=0.6)
        event = emit_one("slow")
        with slow() as handler:
            box.drain()
            becomes_true(sees_leases(event, 4))
            assert another(box).drain() == 0
            handler.gate.set()
            becomes_true(lambda: stored(event).status == DELIVERED)
        assert (handler.begun, stored(event).attempts, box.counters["fenced"]) == (["0"], 1, 0)

    def test_settles_each_event_when_it_is_done(self, configure: Configure) -> None:
        box, pair = configure(**LONG_LEASE), Pair("pair")
        box.registry.add(pair)
        first, second, given_back = emit(3, "pair")
        try:
            box.drain()
            slice_ends(given_back)
            pair.gates[0].set()
            becomes_true(lambda: stored(first).status == DELIVERED)
            assert stored(second).status == SENDING
        finally:
            pair.open()
        becomes_true(lambda: stored(second).status == DELIVERED)

    def test_settles_the_last_ones_at_its_end_though_another_destination_goes_on(self, configure: Configure) -> None:
        box, pair = configure(**LONG_LEASE), Pair("pair")
        box.registry.add(pair)
        mine, given_back = emit(2, "pair"), emit(2, "others")[1]
        with slow("others"):
            try:
                box.drain()
                slice_ends(given_back)
            finally:
                pair.open()  # one right after the other
            becomes_true(lambda: {stored(event).status for event in mine} == {DELIVERED})
            assert not is_over(box)

    def test_waits_for_its_throttle_while_others_go_on(self, configure: Configure) -> None:
        box = patient(configure())
        outbox.handler("order.*", name="one", concurrency=1)(lambda _: None)
        outbox.handler("parcel.*", name="another")(lambda _: None)
        place = box.throttles.of(box.registry.destinations["one"]).admit(1, mode=DeliveryMode.DRAIN)
        event, other = emit_one(), emit_one("parcel.sent")
        box.drain()
        assert (stored(event).status, stored(other).status) == (SENDING, DELIVERED)
        place.finish(1, 0.1)
        becomes_true(lambda: stored(event).status == DELIVERED)

    def test_that_is_the_only_one_is_waited_for_and_no_more_is_claimed_for_it(self, configure: Configure) -> None:
        box, in_flight = patient(configure(batch_size=1)), []
        outbox.handler("*", name="one", concurrency=1)(
            lambda _: in_flight.append(len(box.delivery.quarantine._in_flight))
        )
        throttle = box.throttles.of(box.registry.destinations["one"])
        place = throttle.admit(1, mode=DeliveryMode.DRAIN)
        emit(3)
        with ThreadPoolExecutor(1) as executor:
            drain = executor.submit(box.drain)
            becomes_true(lambda: len(throttle._queue._holders) > 0)
            place.finish(1, 0.1)
            assert drain.result(PATIENCE_SECONDS) == 3
        assert in_flight == [1, 1, 1]

    def test_of_one_event_at_two_destinations_the_last_one_settles_both(self, configure: Configure) -> None:
        box = configure(**LONG_LEASE)
        event = emit_one()
        with slow("*", name="slow") as first, slow("*", name="slower") as second:
            box.drain()
            becomes_true(lambda: bool(first.begun and second.begun))
            first.gate.set()
            becomes_true(lambda: first.ended == ["0"])
            assert stored(event).status == SENDING
            second.gate.set()
            becomes_true(lambda: stored(event).status == DELIVERED)
        becomes_true(lambda: is_over(box))

    def test_may_be_several_batches(self, configure: Configure) -> None:
        box = configure(batch_size=1, drains=5, lease_seconds=0.6)
        events = emit(4, "slow")
        with slow() as handler:
            while box.drain():
                pass
            becomes_true(lambda: len(handler.begun) == 4)
            assert statuses() == {SENDING: 4}
            becomes_true(sees_leases(events[0], 4))
            handler.gate.set()
            becomes_true(lambda: statuses() == {DELIVERED: 4})
        becomes_true(lambda: is_over(box))
        assert sorted(handler.begun) == ["0", "1", "2", "3"]

    def test_gives_back_the_events_that_it_has_not_begun_after_a_second(self, box: Outbox) -> None:
        first, *others = emit(4, "slow")
        notified: list[float] = []
        replace_wake(box, lambda: notified.append(time.monotonic()))
        with slow() as handler:
            box.drain()
            becomes_true(lambda: statuses() == {SENDING: 1, PENDING: 3})
            assert {(stored(event).attempts, stored(event).lease_id) for event in others} == {(0, None)}
            becomes_true(lambda: bool(notified))
            handler.gate.set()
            becomes_true(lambda: stored(first).status == DELIVERED)
        assert handler.begun == ["0"]

    def test_that_raises_in_the_end_is_tried_again(self, configure: Configure) -> None:
        box, gate = configure(**LONG_LEASE), Gate()

        @outbox.handler("slow", name="slow")
        def handle(_: outbox.Event) -> None:
            passes(gate)
            raise ValueError("no")

        event = emit_one("slow")
        box.drain()
        gate.set()
        becomes_true(lambda: stored(event).status == PENDING)
        assert (stored(event).attempts, error_of(event)) == (1, "slow: ValueError: no")

    def test_that_is_interrupted_is_tried_again_and_affects_no_other(self, configure: Configure) -> None:
        box, gate = configure(**LONG_LEASE), Gate()

        @outbox.handler("slow", name="slow")
        def handle(_: outbox.Event) -> None:
            passes(gate)
            raise KeyboardInterrupt

        events = emit(3, "slow")
        box.drain()
        gate.set()
        becomes_true(lambda: statuses() == {PENDING: 3})
        becomes_true(lambda: is_over(box))
        assert [stored(event).attempts for event in events] == [1, 0, 0]
        assert error_of(events[0]) == "slow: KeyboardInterrupt"

    def test_whose_threads_can_not_all_be_started_loses_no_event(
        self, configure: Configure, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        box = configure(**LONG_LEASE)
        start = threading.Thread.start

        def start_some(thread: threading.Thread) -> None:
            if thread.name == "outbox-to-second":
                becomes_true(lambda: bool(first.begun))
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", start_some)
        with slow("first") as first, slow("second"):
            mine, others = emit_one("first"), emit_one("second")
            with contextlib.suppress(RuntimeError):
                box.drain()
            first.gate.set()
            becomes_true(lambda: stored(mine).status == DELIVERED)
            becomes_true(lambda: is_over(box))
        assert (stored(others).status, stored(others).attempts) == (PENDING, 0)


class TestAProcessThatIsStopping:
    def test_finishes_what_it_has_begun_and_gives_back_the_rest(self, configure: Configure) -> None:
        box = configure(**LONG_LEASE)
        begun, *others = emit(4, "slow")
        with slow() as handler:
            box.drain()
            box.stopping.set()
            assert box.drain() == 0
            assert not box.delivery.quarantine.wait_until_idle(0)
            handler.gate.set()
            assert box.delivery.quarantine.wait_until_idle(PATIENCE_SECONDS)
        # After that nothing is left to wait for: everything is written.
        assert (stored(begun).status, stored(begun).attempts) == (DELIVERED, 1)
        assert {(row.status, row.attempts, row.lease_id) for row in map(stored, others)} == {(PENDING, 0, None)}
        assert handler.begun == ["0"]

    def test_waits_for_a_call_that_it_has_left_behind(self, make_stage: MakeStage) -> None:
        stage = make_stage(lease_seconds=2)
        worker = stage.worker(threads=1)
        gate = stage.gate()
        slow = stage.emit(1, do="wait", gate=str(gate))
        stage.wake()
        stage.wait_until_begun(*slow)
        quick = stage.emit()
        stage.wake()
        stage.wait_for(lambda: stage.ended() == quick, "the only thread has turned away")
        worker.signal(signal.SIGTERM)
        ((first,),) = ((until,) for until, status in stage.rows("lease_until", "status") if status == "sending")

        def is_renewed() -> bool:
            (until,) = [until for until, status in stage.rows("lease_until", "status") if status == "sending"]
            return bool((until - first).total_seconds() > 2 * stage.settings.lease_seconds)

        stage.wait_for(is_renewed, "the call goes on, and keeps its lease")
        assert worker.running
        gate.touch()
        assert worker.wait() == 0
        assert stage.statuses() == {"delivered": 2}

        again = stage.worker()
        more = stage.emit()
        stage.wake()
        stage.wait_until_all("delivered")
        assert again.running
        assert Counter(stage.began()) == Counter(stage.ended()) == Counter(slow + quick + more)
        assert {attempts for (attempts,) in stage.rows("attempts")} == {1}


class TestOverdue:
    """The lease keeper interrupts a call that takes too long, although the worker no longer waits for it."""

    def test_a_call_is_interrupted_and_tried_again(self, configure: Configure) -> None:
        box, gate = configure(lease_seconds=0.8, max_run_seconds=1, **SOON), Gate()

        @outbox.handler("slow", name="slow")
        def handle(_: outbox.Event) -> None:
            while not gate.is_set():  # in Python, so that an interrupt can reach it
                pass

        event = emit_one("slow")
        try:
            box.drain()
            becomes_true(lambda: is_over(box))
            becomes_true(lambda: stored(event).status == PENDING)
        finally:
            gate.set()
        assert stored(event).attempts == 1
        assert error_of(event) == "slow: Overdue: the call took longer than OUTBOX_MAX_RUN_SECONDS"
        becomes_true(lambda: box.drain() == 1)
        assert stored(event).status == DELIVERED

    def test_a_call_that_can_not_be_interrupted_is_given_up_and_its_outcome_is_fenced(
        self, configure: Configure
    ) -> None:
        box = configure(lease_seconds=0.5, max_run_seconds=1)
        event = emit_one("slow")
        with slow() as handler:
            box.drain()
            becomes_true(lambda: is_over(box))
            assert handler.ended == []
            becomes_true(lambda: claim(another(box).delivery, 1) is not None)
        becomes_true(lambda: box.counters["fenced"] == 1)
        assert (stored(event).status, stored(event).attempts) == (SENDING, 2)

    def test_others_go_on_meanwhile(self, configure: Configure) -> None:
        box = configure(lease_seconds=0.5, max_run_seconds=1)
        emit_one("slow")
        outbox.handler("quick", name="quick")(lambda _: None)
        with slow():
            box.drain()
            becomes_true(lambda: is_over(box))
            emit(3, "quick")
            becomes_true(lambda: drained(box)[DELIVERED] == 3)


class TestPutOff:
    """Events that a destination's throttle does not admit now are put off, at no cost."""

    def test_events_beyond_the_rate_limit_are_due_one_after_another(self, box: Outbox) -> None:
        got: list[str] = []
        outbox.handler("order.*", name="limited", per_second=0.1)(lambda event: got.append(event.aggregate_id))
        first, *others = emit(4)
        before = stored(first).created_at
        assert box.drain() == 4
        assert (got, stored(first).status) == (["0"], DELIVERED)
        due = [stored(event).next_attempt_at for event in others]
        assert [(b - a).total_seconds() for a, b in pairwise(due)] == pytest.approx([10, 10])
        assert timedelta(seconds=9) < due[0] - before < timedelta(seconds=30)
        assert box.drain() == 0

    def test_it_costs_no_attempt_and_is_no_error(self, box: Outbox) -> None:
        outbox.handler("order.*", name="limited", per_second=0.1)(lambda _: None)
        events = emit(4)[1:]
        box.drain()
        for row in map(stored, events):
            assert (row.status, row.attempts, row.error_message, row.lease_id) == (PENDING, 0, None, None)
            assert row.progress["limited"].keys() == {"state", "not_before"}

    def test_the_error_of_an_earlier_attempt_is_kept(self, box: Outbox) -> None:
        outbox.handler("order.*", name="limited", per_second=0.001)(lambda _: None)
        _, event = emit(2)
        since = timestamp.to_text(stored(event).created_at - timedelta(hours=1))
        entry = {"state": "waiting", "attempts": 2, "waits": 3, "since": since, "error": "it was down"}
        change(event, progress={"limited": entry}, attempts=2)
        box.drain()
        row = stored(event)
        assert {name: row.progress["limited"][name] for name in entry} == entry
        assert row.progress["limited"].keys() - entry.keys() == {"not_before"}
        assert (row.attempts, row.error_message) == (2, "limited: it was down")

    def test_a_destination_that_has_it_does_not_get_it_again(self, box: Outbox) -> None:
        free: list[str] = []
        limited: list[str] = []
        outbox.handler("order.*", name="free")(lambda event: free.append(event.aggregate_id))
        outbox.handler("order.*", name="limited", per_second=0.001)(lambda event: limited.append(event.aggregate_id))
        events = emit(3)
        box.drain()
        assert (free, limited) == (["0", "1", "2"], ["0"])
        assert [stored(event).progress["free"]["state"] for event in events[1:]] == [DELIVERED] * 2
        for _ in range(2):
            let_pass(hours=1)
            go(box)
        assert statuses() == {DELIVERED: 3}
        assert (free, sorted(limited)) == (["0", "1", "2"], ["0", "1", "2"])
        assert {row.attempts for row in OutboxEvent.select()} == {1}

    def test_a_worker_is_notified_when_it_is_due(self, box: Outbox) -> None:
        outbox.handler("order.*", name="limited", per_second=2)(lambda _: None)
        replace_wake(box, lambda: drain(box))
        emit(3)
        becomes_true(lambda: statuses() == {DELIVERED: 3})

    def test_no_timer_is_set_for_an_event_that_is_due_much_later(self, box: Outbox) -> None:
        outbox.handler("order.*", name="limited", per_second=0.01)(lambda _: None)
        emit(3)
        replace_wake(box, lambda: None)
        box.drain()
        assert not box.notifier._timer.is_running

    def test_when_the_concurrency_limit_is_reached_the_rest_is_due_again_soon(self, configure: Configure) -> None:
        box = configure(batch_size=1)
        with slow(concurrency=1) as handler:
            busy, waiting = emit(2, "slow")
            box.drain()
            becomes_true(lambda: stored(waiting).status == PENDING)
            row = stored(waiting)
            assert (stored(busy).status, row.attempts, row.error_message) == (SENDING, 0, None)
            assert timedelta(0) < row.next_attempt_at - row.created_at < timedelta(seconds=30)
            handler.gate.set()
            becomes_true(lambda: stored(busy).status == DELIVERED)
            let_pass(minutes=1)
            becomes_true(lambda: drained(box) == {DELIVERED: 2})
        assert handler.begun == ["0", "1"]

    def test_a_worker_takes_about_a_seconds_work_of_a_slow_destination(self, box: Outbox) -> None:
        outbox.handler("order.*", name="slow")(lambda _: None)
        box.throttles.of(box.registry.destinations["slow"]).measure_speed(3, 1.0, 1)
        emit(10)
        box.drain()
        becomes_true(lambda: statuses() == {DELIVERED: 3, PENDING: 7})
        assert {row.attempts for row in OutboxEvent.select() if row.status == PENDING} == {0}

    def test_process_pending_events_delivers_all(self, box: Outbox) -> None:
        outbox.handler("order.*", name="slow")(lambda _: None)
        box.throttles.of(box.registry.destinations["slow"]).measure_speed(3, 1.0, 1)
        emit(10)
        box.process_pending_events()
        assert statuses() == {DELIVERED: 10}


class Down:
    """A handler that raises Unavailable until it is up."""

    def __init__(self, **limits: Any) -> None:
        self.up = False
        self.called: list[str] = []
        outbox.handler("order.*", name="down", **limits)(self._handle)

    def _handle(self, event: outbox.Event) -> None:
        self.called.append(event.aggregate_id)
        if not self.up:
            raise outbox.Unavailable("connection refused")


NOT_TRIED = "down: not tried: its circuit breaker is open, since it could not be reached"


class TestWhileTheCircuitBreakerIsOpen:
    @pytest.fixture
    def configure(self, configure: Configure) -> Configure:
        """Configure an outbox whose circuit breakers stay open for longer than a test takes."""
        stays_open = OpenTimes(first_seconds=3_600.0, cap_seconds=3_600.0)
        return lambda **settings: replace_throttles(configure(**settings), breaker=stays_open)

    @pytest.mark.parametrize("by_hand", [True, False])
    def test_events_are_not_tried_their_error_says_so_and_they_cost_no_attempt(
        self, box: Outbox, *, by_hand: bool
    ) -> None:
        down = Down()
        events = emit(8)
        if by_hand:
            box.process_pending_events()
        else:
            box.drain()
        assert down.called == ["0", "1", "2", "3", "4"]
        assert [error_of(event) for event in events[:5]] == ["down: connection refused"] * 5
        for row in map(stored, events[5:]):
            assert (row.status, row.attempts, row.error_message, row.lease_id) == (PENDING, 0, NOT_TRIED, None)
            assert "since" in row.progress["down"]

    def test_a_success_between_failures_keeps_it_closed(self, box: Outbox) -> None:
        called: list[str] = []

        @outbox.handler("order.*", name="flaky")
        def flaky(event: Event) -> None:
            called.append(event.aggregate_id)
            if len(called) % 4:  # three failures in a row, then a success; five open the breaker
                raise outbox.Unavailable("busy")

        emit(16)
        box.process_pending_events()
        assert len(called) == 16
        assert box.throttles.breakers() == {}

    def test_events_that_were_tried_are_logged_each_and_the_others_once(
        self, box: Outbox, caplog: pytest.LogCaptureFixture
    ) -> None:
        Down()
        with box.database.atomic():
            emit(100)
        box.drain()
        warned = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        assert sum("put off until" in message for message in warned) == 5
        assert sum("The circuit breaker of down is open" in message for message in warned) == 1
        assert len(warned) == 6

    def test_those_emitted_later_are_not_tried_either(self, box: Outbox) -> None:
        down = Down()
        emit(5)
        box.drain()
        later = emit(3)
        box.drain()
        assert len(down.called) == 5
        assert {error_of(event) for event in later} == {NOT_TRIED}

    @pytest.mark.parametrize(("waits", "seconds"), [(0, 60), (1, 120), (3, 480), (4, 600), (10, 600)])
    def test_they_are_put_off_for_the_usual_backoff_but_ten_minutes_at_most(
        self, configure: Configure, waits: int, seconds: float
    ) -> None:
        box = replace_throttles(configure(backoff_base_seconds=60), breaker=OpenTimes(first_seconds=30.0))
        Down()
        emit(5)
        box.drain()
        event = emit_one()
        change(event, progress={"down": {"waits": waits}})
        box.drain()
        row = stored(event)
        assert row.progress["down"]["waits"] == waits + 1
        assert (row.next_attempt_at - row.updated_at).total_seconds() == pytest.approx(seconds, abs=5)

    def test_they_are_put_off_at_least_until_the_next_probe(self, configure: Configure) -> None:
        box = configure(backoff_base_seconds=1)
        Down()
        emit(5)
        box.drain()
        event = emit_one()
        box.drain()
        row = stored(event)
        assert (row.next_attempt_at - row.updated_at).total_seconds() == pytest.approx(3_600, abs=20)

    def test_their_age_is_kept_and_at_the_maximum_they_fail_untried(self, configure: Configure) -> None:
        box = configure(max_age_hours=72)
        down = Down()
        emit(5)
        box.drain()
        waiting = emit_one()
        box.drain()
        since = timestamp.from_database(stored(waiting).progress["down"]["since"])
        for _ in range(3):
            let_pass(hours=20)
            box.drain()
        row = stored(waiting)
        passed = since - timestamp.from_database(row.progress["down"]["since"])
        assert passed == timedelta(hours=60)
        assert (row.status, row.progress["down"]["waits"]) == (PENDING, 4)
        let_pass(hours=12.1)
        box.drain()
        row = stored(waiting)
        assert (row.status, row.attempts) == (FAILED, 0)
        assert row.error_message == f"{NOT_TRIED} (given up after 72 hours, OUTBOX_MAX_AGE_HOURS)"
        assert len(down.called) == 5

    def test_other_destinations_get_the_same_events_and_only_once(self, box: Outbox) -> None:
        down = Down()
        got: list[str] = []
        outbox.handler("order.*", name="alive")(lambda event: got.append(event.aggregate_id))
        emit(8)
        box.drain()
        down.up = True
        for _ in range(8):
            let_pass(hours=1)
            go(box)
        assert statuses() == {DELIVERED: 8}
        assert got == [str(number) for number in range(8)]


class Breaking:
    """A destination that returns the outcomes, or raises the errors, that it is told to."""

    name = "down"
    events = ("*",)
    limits = Limits(open_after=1)

    def __init__(self) -> None:
        self.outcomes: Iterator[Outcome | BaseException] = iter(())

    def deliver(self, events: Iterable[Event], lease: outbox.Lease) -> Iterator[tuple[Event, Outcome]]:
        for event in events:
            outcome = next(self.outcomes)
            if isinstance(outcome, BaseException) and not isinstance(outcome, outbox.Unavailable):
                raise outcome
            yield event, outcome


class TestProbes:
    @pytest.fixture
    def configure(self, configure: Configure) -> Configure:
        """Configure an outbox whose circuit breakers allow a probe at once."""
        return lambda **settings: replace_throttles(configure(**settings), breaker=OpenTimes(first_seconds=0.0))

    def test_after_a_successful_probe_all_events_follow(self, configure: Configure) -> None:
        box = configure(**SOON)
        down = Down()
        emit(8)
        box.drain()
        down.up = True
        becomes_true(lambda: drained(box) == {DELIVERED: 8})
        assert {row.attempts for row in OutboxEvent.select()} == {1}

    def test_a_probe_that_the_destination_refuses_closes_the_circuit_breaker(self, configure: Configure) -> None:
        box, breaking = configure(**SOON), Breaking()
        box.registry.add(breaking)
        breaking.outcomes = iter([outbox.Unavailable("refused"), ValueError("broken"), Delivered()])
        event = emit_one()
        box.drain()
        assert box.throttles.breakers()["down"]["open"]
        box.drain()
        assert error_of(event) == "down: ValueError: broken"
        box.drain()
        assert stored(event).status == DELIVERED

    def test_a_probe_that_is_interrupted_changes_nothing(self, configure: Configure) -> None:
        box, breaking = configure(**SOON), Breaking()
        box.registry.add(breaking)
        breaking.outcomes = iter([outbox.Unavailable("refused"), KeyboardInterrupt()])
        event = emit_one()
        box.drain()
        let_pass(hours=1)
        with pytest.raises(KeyboardInterrupt):
            box.process_pending_events()
        assert error_of(event) == "down: KeyboardInterrupt"
        assert box.throttles.breakers()["down"]["open"]

    def test_a_probe_that_a_stopping_process_does_not_send_is_left_to_another_process(
        self, configure: Configure
    ) -> None:
        box, breaking = configure(**SOON), Breaking()
        box.registry.add(breaking)
        breaking.outcomes = iter([outbox.Unavailable("refused"), Delivered()])
        event = emit_one()
        box.drain()
        box.stopping.set()
        box.process_pending_events()
        box.stopping.clear()
        assert (stored(event).status, stored(event).attempts) == (PENDING, 0)
        box.drain()
        assert stored(event).status == DELIVERED
