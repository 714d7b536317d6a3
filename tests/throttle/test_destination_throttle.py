"""A throttle: no worker sends to a destination that can't be reached, and a limited one gets no more than it may."""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from outbox.destinations.limits import Limits
from outbox.destinations.outcome import DELIVERED_OUTCOME, Failed, Outcome, Retry
from outbox.destinations.protocol import Lease
from outbox.errors import Unavailable
from outbox.events.event import Event
from outbox.settings import Settings
from outbox.throttle import circuit_breaker, destination_throttle, slot_queue
from outbox.throttle.circuit_breaker import RAMP_SECONDS
from outbox.throttle.delivery_mode import DeliveryMode
from outbox.throttle.destination_throttle import Admission, DestinationThrottle
from outbox.throttle.rate_limit import BURST_SECONDS
from outbox.throttle.shared_state import ThrottleState
from outbox.throttle.shared_throttle import HEALTH_CHECK_SECONDS
from outbox.throttle.state_store import Decide, LocalStore
from outbox.throttle.throttles import Throttles
from tests.servers import PATIENCE_SECONDS, Redis

HOLD_SECONDS = 100.0
DRAIN, ONE_BATCH = DeliveryMode.DRAIN, DeliveryMode.ONE_BATCH
REFUSED = Unavailable("refused")
OPENED = (
    "The circuit breaker of target is open: no events are sent to it for %d seconds, "
    "since it could not be reached: refused"
)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Target:
    """A destination, as far as a throttle is concerned."""

    events = ("*",)

    def __init__(self, limits: Limits | None = None, **options: Any) -> None:
        self.name = "target"
        self.limits = limits
        self.hold_seconds = HOLD_SECONDS
        vars(self).update(options)

    def deliver(self, events: Iterable[Event], lease: Lease) -> Iterable[tuple[Event, Outcome]]:
        return []


class CountingStore(LocalStore):
    updates = 0

    def update(self, name: str, decide: Decide[Any]) -> Any:
        self.updates += 1
        return super().update(name, decide)


class Worker:
    """A process with a throttle, and a clock that the test moves."""

    def __init__(self, limits: Limits | None = None, *, max_batches: int = 2, **options: Any) -> None:
        self.clock = Clock()
        self.store = CountingStore(self.clock)
        self.throttle = DestinationThrottle(
            Target(limits, **options), self.store, self.clock, max_batches=max_batches, hold_seconds=HOLD_SECONDS
        )

    def try_one(self, outcome: Outcome, events: int = 1) -> Admission:
        """Go through the throttle, if it lets us, and tell what became of it."""
        return go(self.throttle, outcome, events)

    def open(self) -> None:
        for _ in range(5):
            self.try_one(REFUSED)
        assert self.is_open()

    def is_open(self) -> bool:
        return self.state.is_open

    @property
    def state(self) -> ThrottleState:
        state: ThrottleState = self.store.update(self.throttle.name, lambda state, _: (state, state))
        return state

    def events(self, wanted: int = 100, *, mode: DeliveryMode = ONE_BATCH) -> int:
        """How many may go now."""
        return self.throttle.admit(wanted, mode=mode).events


def go(throttle: DestinationThrottle, outcome: Outcome, events: int = 1) -> Admission:
    admission = throttle.admit(events, mode=ONE_BATCH)
    for _ in range(admission.events):
        admission.record_outcome(outcome)
    admission.finish(admission.events, 0.01)
    return admission


class TestOpening:
    def test_so_many_in_a_row_that_could_not_be_reached_open_it(self) -> None:
        worker = Worker(Limits(open_after=3))
        for _ in range(2):
            worker.try_one(REFUSED)
        assert not worker.is_open()
        worker.try_one(REFUSED)
        assert worker.is_open()
        assert worker.state.error == "refused"

    @pytest.mark.parametrize("outcome", [DELIVERED_OUTCOME, Retry("no"), Failed("never")])
    def test_any_other_answer_begins_the_count_anew(self, outcome: Outcome) -> None:
        worker = Worker(Limits(open_after=3))
        for _ in range(5):
            worker.try_one(REFUSED)
            worker.try_one(REFUSED)
            worker.try_one(outcome)
        assert not worker.is_open()

    def test_without_limits_it_is_five(self) -> None:
        worker = Worker()
        for _ in range(4):
            worker.try_one(REFUSED)
        assert not worker.is_open()
        worker.try_one(REFUSED)
        assert worker.is_open()

    def test_one_that_is_never_to_be_left_alone_is_not(self) -> None:
        worker = Worker(Limits(open_after=None))
        for _ in range(100):
            assert worker.try_one(REFUSED).events == 1
        assert not worker.is_open()

    def test_events_of_one_permit_count_like_those_of_many(self) -> None:
        worker = Worker()
        admission = worker.throttle.admit(10, mode=ONE_BATCH)
        for _ in range(4):
            admission.record_outcome(REFUSED)
        assert not worker.is_open()
        admission.record_outcome(REFUSED)
        assert admission.is_withdrawn
        assert worker.is_open()

    def test_it_withdraws_what_others_in_this_process_were_permitted_before(self) -> None:
        worker = Worker()
        before = worker.throttle.admit(10, mode=ONE_BATCH)
        worker.open()
        assert before.is_withdrawn
        assert not worker.throttle.admit(10, mode=ONE_BATCH).is_withdrawn

    def test_nobody_gets_in_and_is_told_for_how_long(self) -> None:
        worker = Worker()
        worker.open()
        worker.clock.now += 2
        admission = worker.throttle.admit(10, mode=ONE_BATCH)
        assert (admission.events, admission.decision.breaker_open, admission.decision.wait_seconds) == (0, True, 3.0)

    def test_it_is_said_once_however_many_find_out(self, caplog: pytest.LogCaptureFixture) -> None:
        worker = Worker()
        admission = worker.throttle.admit(20, mode=ONE_BATCH)
        for _ in range(20):
            admission.record_outcome(REFUSED)
        assert caplog.messages == [OPENED % 5]


class TestProbes:
    def probe(self, worker: Worker, *, after: float = 5.0) -> Admission:
        worker.clock.now += after
        admission = worker.throttle.admit(10, mode=DRAIN)
        assert (admission.events, admission.at_once, admission.decision.probe) == (1, 1, True)
        return admission

    def test_when_its_time_is_over_one_event_is_let_through(self) -> None:
        worker = Worker()
        worker.open()
        worker.clock.now += 4.9
        assert worker.events() == 0
        self.probe(worker, after=0.1)
        assert worker.events() == 0

    @pytest.mark.parametrize("outcome", [DELIVERED_OUTCOME, Retry("no"), Failed("never")])
    def test_one_that_is_answered_closes_it(self, outcome: Outcome, caplog: pytest.LogCaptureFixture) -> None:
        worker = Worker()
        worker.open()
        caplog.clear()
        self.probe(worker).record_outcome(outcome)
        assert not worker.is_open()
        assert caplog.messages == ["The circuit breaker of target is closed: it was reached again"]

    def test_afterwards_more_and_more_go_and_at_last_as_many_as_come(self) -> None:
        worker = Worker()
        worker.open()
        self.probe(worker).record_outcome(DELIVERED_OUTCOME)
        assert worker.events() == 1
        admitted = []
        for _ in range(int(RAMP_SECONDS)):
            worker.clock.now += 1
            admitted.append(worker.events(1_000_000))
        assert admitted[:-1] == sorted(admitted[:-1])
        assert admitted[0] == 1
        assert admitted[-2] < 2_000 < admitted[-1] == 1_000_000

    def test_one_that_fails_opens_it_for_longer(self, caplog: pytest.LogCaptureFixture) -> None:
        worker = Worker()
        worker.open()
        waits = [5.0]
        for _ in range(6):
            probe = self.probe(worker, after=waits[-1])
            probe.record_outcome(REFUSED)
            probe.finish(1, 0.1)
            waits.append(worker.throttle.admit(1, mode=ONE_BATCH).decision.wait_seconds)
        assert waits == [5, 10, 20, 40, 60, 60, 60]
        assert caplog.messages[-1] == OPENED % 60

    def test_one_that_never_answers_makes_way_when_its_time_is_over(self) -> None:
        worker = Worker()
        worker.open()
        self.probe(worker)
        worker.clock.now += HOLD_SECONDS - 0.1
        assert worker.events() == 0
        self.probe(worker, after=0.1)

    def test_one_that_was_not_sent_after_all_makes_way_before_that(self) -> None:
        worker = Worker()
        worker.open()
        self.probe(worker).finish(0, 0.01)
        worker.clock.now += 5
        assert worker.events() == 1

    def test_what_others_find_out_late_does_not_withdraw_it(self) -> None:
        worker = Worker(Limits(open_after=1))
        late = worker.throttle.admit(2, mode=ONE_BATCH)
        late.record_outcome(REFUSED)
        probe = self.probe(worker)
        late.record_outcome(REFUSED)
        assert not probe.is_withdrawn

    def test_a_late_failure_of_others_does_not_open_it_again(self) -> None:
        worker = Worker(Limits(open_after=3))
        late = worker.throttle.admit(10, mode=ONE_BATCH)
        for _ in range(3):
            late.record_outcome(REFUSED)
        self.probe(worker).record_outcome(DELIVERED_OUTCOME)
        late.record_outcome(REFUSED)
        assert not worker.is_open()

    def test_it_needs_no_place_of_those_that_a_process_has(self) -> None:
        worker = Worker(max_batches=1)
        worker.throttle.admit(1, mode=DRAIN)
        worker.open()
        self.probe(worker)


class TestUnlimited:
    def test_while_all_is_calm_nobody_is_asked_for_a_second(self) -> None:
        worker = Worker()
        for _ in range(100):
            assert worker.try_one(DELIVERED_OUTCOME, events=100).events == 100
            worker.clock.now += HEALTH_CHECK_SECONDS / 101
        assert worker.store.updates == 1
        worker.clock.now += HEALTH_CHECK_SECONDS / 10
        worker.try_one(DELIVERED_OUTCOME)
        assert worker.store.updates == 2

    def test_after_an_outage_everybody_asks_each_time(self) -> None:
        worker = Worker()
        worker.open()
        worker.clock.now += 5
        worker.try_one(DELIVERED_OUTCOME)
        before = worker.store.updates
        for _ in range(5):
            worker.events()
        assert worker.store.updates == before + 5

    def test_by_hand_neither_groups_nor_speed_bound_it(self) -> None:
        worker = Worker(max_batches=1)
        worker.throttle.measure_speed(1, 10.0, 1)
        for _ in range(5):
            assert worker.events(10_000, mode=ONE_BATCH) == 10_000


class TestGroups:
    """Without a limit of its own, a process works on so many shares of it at once."""

    def test_so_many_workers_get_in_and_the_next_one_does_not(self) -> None:
        worker = Worker(max_batches=3)
        admissions = [worker.throttle.admit(10, mode=DRAIN) for _ in range(3)]
        assert [admission.events for admission in admissions] == [10, 10, 10]
        waited: list[int] = []
        turned_away = worker.throttle.admit(10, mode=DRAIN, on_wait=lambda: waited.append(1))
        assert (turned_away.events, turned_away.decision.limit_reached) == (0, True)
        assert waited
        admissions[0].finish(0, 0)
        assert worker.events(mode=DRAIN) == 100

    def test_one_who_was_turned_away_gives_back_nothing(self) -> None:
        worker = Worker(max_batches=1)
        worker.throttle.admit(10, mode=DRAIN)
        worker.throttle.admit(10, mode=DRAIN).finish(0, 0)
        assert worker.events(mode=DRAIN) == 0

    def test_a_place_that_is_free_in_a_moment_is_waited_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(destination_throttle, "PATIENCE_SECONDS", 20.0)
        worker = Worker(max_batches=1)
        busy = worker.throttle.admit(10, mode=DRAIN)
        assert worker.throttle.admit(10, mode=DRAIN, on_wait=lambda: busy.finish(0, 0)).events == 10

    def test_who_has_just_left_comes_after_those_who_wait(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(destination_throttle, "PATIENCE_SECONDS", PATIENCE_SECONDS)
        monkeypatch.setattr(slot_queue, "LOOK_SECONDS", PATIENCE_SECONDS)
        worker = Worker(max_batches=1)
        waits = threading.Event()
        order: list[str] = []

        def come(name: str) -> None:
            admission = worker.throttle.admit(10, mode=DRAIN, on_wait=waits.set)
            order.append(f"{name}: {admission.events}")
            admission.finish(0, 0)

        first = worker.throttle.admit(10, mode=DRAIN)
        with ThreadPoolExecutor(1) as executor:
            other = executor.submit(come, "other")
            assert waits.wait(PATIENCE_SECONDS)
            first.finish(0, 0)
            come("first again")
            other.result(PATIENCE_SECONDS)
        assert order == ["other: 10", "first again: 10"]

    def test_one_that_has_been_taken_for_long_is_not(self) -> None:
        worker = Worker(max_batches=1)
        worker.throttle.admit(10, mode=DRAIN)
        worker.clock.now += 7
        waited: list[int] = []
        admission = worker.throttle.admit(10, mode=DRAIN, on_wait=lambda: waited.append(1))
        assert (admission.events, admission.decision.wait_seconds, waited) == (0, 7.0, [])

    @pytest.mark.parametrize("seconds", [HOLD_SECONDS - 0.1, HOLD_SECONDS, 10 * HOLD_SECONDS])
    def test_a_call_that_does_not_return_keeps_its_place_until_it_does(self, seconds: float) -> None:
        worker = Worker(max_batches=1)
        admission = worker.throttle.admit(10, mode=DRAIN)
        worker.clock.now += seconds
        assert worker.events(mode=DRAIN) == 0
        admission.finish(1, seconds)
        assert worker.events(mode=DRAIN) > 0

    def test_one_that_makes_many_calls_at_once_is_one_of_them(self) -> None:
        worker = Worker(max_batches=2, at_once=8)
        admissions = [worker.throttle.admit(100, mode=DRAIN) for _ in range(2)]
        assert [(admission.events, admission.at_once) for admission in admissions] == [(100, 8), (100, 8)]
        assert worker.events(mode=DRAIN) == 0

    def test_one_that_makes_many_calls_at_once_makes_them_all_when_its_speed_is_known(self) -> None:
        worker = Worker(max_batches=2, at_once=8)
        worker.throttle.measure_speed(80, 1.0, 8)
        admission = worker.throttle.admit(1_000, mode=DRAIN)
        assert (admission.events, admission.at_once) == (80, 8)

    def test_its_own_limit_counts_instead(self) -> None:
        worker = Worker(Limits(concurrency=5), max_batches=1)
        assert [worker.events(mode=DRAIN) for _ in range(6)] == [100] * 5 + [0]

    def test_who_is_turned_away_does_not_use_up_turns(self) -> None:
        worker = Worker(Limits(per_second=1_000), max_batches=1)
        busy = worker.throttle.admit(1, mode=DRAIN)
        worker.clock.now += 1
        for _ in range(3):
            assert worker.events(1_000, mode=DRAIN) == 0
        busy.finish(0, 0)
        assert worker.events(1_000, mode=DRAIN) == 1_000 * BURST_SECONDS


class TestSpeed:
    def test_a_worker_gets_about_a_seconds_work_once_its_speed_is_known(self) -> None:
        worker = Worker(max_batches=10)
        assert worker.events(1_000, mode=DRAIN) == 1_000
        worker.throttle.measure_speed(20, 2.0, 1)
        assert worker.events(1_000, mode=DRAIN) == 10

    def test_the_rest_is_put_off_at_the_speed_of_all_places_together(self) -> None:
        worker = Worker(max_batches=2)
        worker.throttle.measure_speed(20, 2.0, 1)
        decision = worker.throttle.admit(1_000, mode=DRAIN).decision
        assert decision.events == 10
        assert decision.step_seconds == pytest.approx(1 / (10 * 2))
        assert 0.5 <= decision.delay_seconds(0) <= 0.6

    def test_others_of_this_process_stand_behind_those_who_were_put_off(self) -> None:
        worker = Worker()
        worker.throttle.measure_speed(20, 2.0, 1)
        first = worker.throttle.admit(30, mode=DRAIN).decision
        second = worker.throttle.admit(30, mode=DRAIN).decision
        assert second.delay_seconds(0) >= first.delay_seconds(19)

    def test_it_follows_by_a_third_each_time(self) -> None:
        worker = Worker(max_batches=1_000)
        worker.throttle.measure_speed(90, 1.0, 1)
        speeds = []
        for _ in range(3):
            worker.throttle.measure_speed(30, 1.0, 1)
            speeds.append(worker.events(1_000, mode=DRAIN))
        assert speeds == [70, 57, 48]

    def test_several_calls_at_once_are_that_much_faster(self) -> None:
        worker = Worker(Limits(concurrency=4), at_once=4)
        worker.throttle.measure_speed(40, 2.0, 4)  # five a second each
        assert worker.events(1_000, mode=DRAIN) == 20

    def test_what_was_left_without_an_answer_says_nothing(self) -> None:
        worker = Worker()
        worker.throttle.admit(1, mode=DRAIN).finish(0, 1_000.0)
        assert worker.events(1_000, mode=DRAIN) == 1_000

    @given(st.lists(st.tuples(st.integers(1, 10_000), st.just(0.0) | st.floats(1e-9, 1e6), st.integers(0, 100))))
    def test_whatever_it_was_at_least_one_goes(self, took: list[tuple[int, float, int]]) -> None:
        worker = Worker()
        for events, seconds, at_once in took:
            worker.throttle.measure_speed(events, seconds, at_once)
        assert 1 <= worker.events(1_000, mode=DRAIN) <= 1_000


class TestRates:
    @pytest.mark.parametrize("mode", DeliveryMode)
    def test_no_more_go_than_its_share_of_the_time(self, *, mode: DeliveryMode) -> None:
        worker = Worker(Limits(per_second=50), max_batches=1_000)
        gone = 0
        for _ in range(1_000):
            gone += worker.events(500, mode=mode)
            worker.clock.now += 0.01
        assert 500 <= gone <= 500 + 5 + 1

    @pytest.mark.parametrize("per_second", [1, 5, 10, 15, 50])
    def test_those_who_are_a_little_late_for_their_turns_do_not_lose_them(self, per_second: int) -> None:
        worker = Worker(Limits(per_second=per_second), max_batches=1_000)
        began_at = worker.clock.now
        waiting = [0.0] * 100
        while waiting:
            come = [turn for turn in waiting if began_at + turn <= worker.clock.now]
            waiting = [turn for turn in waiting if began_at + turn > worker.clock.now]
            if come:
                admission = worker.throttle.admit(len(come), mode=ONE_BATCH)
                now = worker.clock.now - began_at
                waiting += [
                    now + admission.decision.delay_seconds(number) for number in range(len(come) - admission.events)
                ]
            worker.clock.now += 0.05  # as a timer would fire
        assert worker.clock.now - began_at == pytest.approx(100 / per_second, rel=0.1)

    def test_those_put_off_go_at_their_turn(self) -> None:
        worker = Worker(Limits(per_second=10), max_batches=1_000)
        admission = worker.throttle.admit(30, mode=DRAIN)
        began_at = worker.clock.now
        turns = sorted({admission.decision.delay_seconds(number) for number in range(30 - admission.events)})
        gone = admission.events
        for turn in turns:
            worker.clock.now = began_at + turn
            gone += worker.events(1, mode=DRAIN)
        assert gone == 30
        assert worker.clock.now - began_at == pytest.approx(3, abs=0.2)


class TestPermits:
    def test_a_place_is_left_once_and_for_all(self) -> None:
        worker = Worker(Limits(concurrency=1))
        admission = worker.throttle.admit(1, mode=ONE_BATCH)
        assert worker.events() == 0
        admission.finish(1, 0.1)
        assert worker.events() == 100

    def test_it_holds_as_many_calls_as_it_may_make(self) -> None:
        worker = Worker(Limits(concurrency=5), at_once=3)
        admissions = [worker.throttle.admit(100, mode=ONE_BATCH) for _ in range(3)]
        assert [admission.at_once for admission in admissions] == [3, 2, 0]
        assert [admission.events for admission in admissions] == [100, 100, 0]

    def test_of_few_events_it_holds_no_more_calls_than_there_are(self) -> None:
        worker = Worker(Limits(concurrency=5), at_once=5)
        assert worker.throttle.admit(2, mode=ONE_BATCH).at_once == 2
        assert worker.throttle.admit(100, mode=ONE_BATCH).at_once == 3


# Workers that share a Redis


@pytest.fixture
def start(redis_server: Redis) -> Iterator[Callable[[], Throttles]]:
    """Another process, with a clock of its own."""
    namespace = f"test-{uuid4().hex}"
    with ExitStack() as stack:

        def start() -> Throttles:
            throttles = Throttles(Settings(redis_url=redis_server.url, namespace=namespace), Clock())
            stack.callback(close, throttles)
            return throttles

        yield start


@pytest.fixture
def client(redis_server: Redis) -> Iterator[Any]:
    with redis.Redis.from_url(redis_server.url) as client:
        yield client


def close(throttles: Throttles) -> None:
    if throttles._store is not None:
        throttles._store._shared._compare_and_set.registered_client.close()  # type: ignore[attr-defined]


def let_pass(throttles: Throttles, seconds: float) -> None:
    assert isinstance(throttles._clock, Clock)
    throttles._clock.now += seconds


@pytest.fixture
def soon_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis's clock is not ours to move: what is open may be tried at once."""
    monkeypatch.setattr(circuit_breaker, "OPEN_SECONDS", 0.0)


def state_of(throttles: Throttles, target: Target) -> ThrottleState:
    """Return what the workers share about a destination."""
    state: ThrottleState = throttles._shared_store().update(target.name, lambda state, _: (state, state))
    return state


def fail(throttle: DestinationThrottle, times: int = 5) -> None:
    for _ in range(times):
        throttle.record_outcome(REFUSED, probe=False)


class TestShared:
    def test_others_leave_it_alone_within_a_second_without_having_tried(self, start: Callable[[], Throttles]) -> None:
        here, there, target = start(), start(), Target()
        assert there.of(target).admit(10, mode=ONE_BATCH).events == 10
        fail(here.of(target))
        let_pass(there, HEALTH_CHECK_SECONDS - 0.01)
        assert there.of(target).admit(10, mode=ONE_BATCH).events == 10
        let_pass(there, 0.01)
        admission = there.of(target).admit(10, mode=ONE_BATCH)
        assert (admission.events, admission.decision.breaker_open) == (0, True)
        assert state_of(there, target).error == "refused"

    def test_failures_are_counted_by_each(self, start: Callable[[], Throttles]) -> None:
        here, there, target = start(), start(), Target()
        for throttles in (here, there):
            fail(throttles.of(target), 4)
        assert not state_of(here, target).is_open
        fail(there.of(target), 1)
        assert state_of(here, target).is_open

    def test_whoever_had_counted_them_begins_anew_when_another_has_closed_it(
        self, start: Callable[[], Throttles], soon_probed: None
    ) -> None:
        here, there, target = start(), start(), Target()
        fail(here.of(target))
        there.of(target).admit(1, mode=DRAIN).record_outcome(DELIVERED_OUTCOME)
        fail(here.of(target), 4)
        assert not state_of(here, target).is_open
        fail(here.of(target), 1)
        assert state_of(here, target).is_open

    def test_one_of_them_probes(self, start: Callable[[], Throttles], soon_probed: None) -> None:
        workers, target = [start() for _ in range(3)], Target()
        fail(workers[0].of(target))
        admissions = [throttles.of(target).admit(10, mode=DRAIN) for throttles in workers]
        assert [admission.events for admission in admissions] == [1, 0, 0]

    def test_a_probe_that_succeeds_closes_it_for_all(self, start: Callable[[], Throttles], soon_probed: None) -> None:
        here, there, target = start(), start(), Target()
        fail(here.of(target))
        there.of(target).admit(10, mode=DRAIN).record_outcome(DELIVERED_OUTCOME)
        assert not state_of(here, target).is_open
        # And all together ramp up.
        assert [throttles.of(target).admit(10, mode=DRAIN).events for throttles in (here, there)] == [1, 0]

    def test_a_probe_that_fails_opens_it_for_longer_for_all(
        self, start: Callable[[], Throttles], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        here, there, target = start(), start(), Target()
        with monkeypatch.context() as patch:
            patch.setattr(circuit_breaker, "OPEN_SECONDS", 0.0)
            fail(here.of(target))
            probe = there.of(target).admit(10, mode=DRAIN)
        probe.record_outcome(REFUSED)
        admission = here.of(target).admit(10, mode=DRAIN)
        assert (admission.events, state_of(here, target).trips) == (0, 2)
        assert admission.decision.wait_seconds == pytest.approx(10, abs=2)

    def test_those_that_find_out_later_do_not_prolong_it(self, start: Callable[[], Throttles]) -> None:
        here, there, target = start(), start(), Target()
        fail(here.of(target))
        until = state_of(here, target).open_until
        fail(there.of(target), 20)
        assert (state_of(here, target).open_until, state_of(here, target).trips) == (until, 1)

    def test_with_one_place_no_two_calls_overlap(self, start: Callable[[], Throttles]) -> None:
        target = Target(Limits(concurrency=1))
        throttles = [start(), start()]
        inside, most = threading.Semaphore(1), []

        def work(number: int) -> int:
            done = 0
            throttle = throttles[number % 2].of(target)
            while done < 10:
                admission = throttle.admit(1, mode=DRAIN if number % 2 else ONE_BATCH)
                if admission.events:
                    most.append(inside.acquire(blocking=False))
                    done += 1
                    inside.release()
                admission.finish(admission.events, 0.001)
            return done

        with ThreadPoolExecutor(4) as executor:
            assert list(executor.map(work, range(4), timeout=PATIENCE_SECONDS)) == [10] * 4
        assert all(most)
        assert state_of(throttles[0], target).active_calls == {}

    def test_places_are_shared(self, start: Callable[[], Throttles]) -> None:
        here, there, target = start(), start(), Target(Limits(concurrency=5), at_once=3)
        first = here.of(target).admit(100, mode=DRAIN)
        second = there.of(target).admit(100, mode=DRAIN)
        assert (first.at_once, second.at_once) == (3, 2)
        assert here.of(target).admit(100, mode=DRAIN).decision.limit_reached
        first.finish(0, 0)
        assert there.of(target).admit(100, mode=DRAIN).at_once == 3

    def test_turns_are_shared(self, start: Callable[[], Throttles]) -> None:
        here, there, target = start(), start(), Target(Limits(per_second=0.1))
        first = here.of(target).admit(6, mode=ONE_BATCH)
        second = there.of(target).admit(6, mode=ONE_BATCH)
        assert (first.events, second.events) == (1, 0)
        assert second.decision.delay_seconds(0) > first.decision.delay_seconds(4)

    def test_what_was_decided_before_the_clock_of_redis_went_back_is_of_now(
        self, start: Callable[[], Throttles], soon_probed: None, client: Any
    ) -> None:
        """That clock is not ours to move: what Redis holds is moved to tomorrow instead."""
        here, target = start(), Target()
        fail(here.of(target))
        (key,) = client.scan_iter(f"{here._settings.namespace}:*")
        state, day = ThrottleState.from_json(client.get(key)), 24 * 3600
        later = replace(state, open_until=state.open_until + day, written_at=state.written_at + day)
        assert state.written_at > day
        client.set(key, later.to_json())
        admission = start().of(target).admit(10, mode=ONE_BATCH)
        assert (admission.events, admission.decision.probe) == (1, True)

    def test_other_destinations_and_other_queues_have_nothing_to_do_with_it(
        self, start: Callable[[], Throttles], redis_server: Redis
    ) -> None:
        here, target = start(), Target()
        other = Target(name="other")
        fail(here.of(target))
        assert here.of(other).admit(10, mode=ONE_BATCH).events == 10
        elsewhere = Throttles(Settings(redis_url=redis_server.url, namespace=here._settings.namespace, queue="another"))
        assert elsewhere.of(target).admit(10, mode=ONE_BATCH).events == 10
        close(elsewhere)


class TestStuck:
    """Calls that never return."""

    @pytest.mark.parametrize("mode", DeliveryMode)
    def test_nothing_more_is_let_through_when_they_have_all_places_and_the_log_says_so_once(
        self, caplog: pytest.LogCaptureFixture, *, mode: DeliveryMode
    ) -> None:
        worker = Worker(max_batches=2)
        first = worker.throttle.admit(1, mode=mode)
        worker.clock.now += HOLD_SECONDS
        assert worker.events(mode=mode) > 0  # and that one does not return either
        worker.clock.now += HOLD_SECONDS
        caplog.clear()
        decisions = [worker.throttle.admit(5, mode=mode).decision for _ in range(3)]
        assert [(decision.events, decision.limit_reached, decision.wait_seconds) for decision in decisions] == [
            (0, True, 30.0)
        ] * 3
        (said,) = [record for record in caplog.records if record.levelno == logging.CRITICAL]
        assert "2 calls of target have not returned" in said.getMessage()
        first.finish(1, HOLD_SECONDS)
        assert worker.events(mode=mode) > 0
        assert caplog.messages[-1] == "Calls of target have returned: this process delivers to it again"

    def test_their_places_are_no_one_elses_among_all_workers(self) -> None:
        worker = Worker(Limits(concurrency=2))
        worker.throttle.admit(1, mode=DRAIN)
        worker.clock.now += 0.6 * HOLD_SECONDS
        second = worker.throttle.admit(1, mode=DRAIN)  # asks, and so says that the first has not returned
        other = DestinationThrottle(
            Target(worker.throttle.limits), worker.store, worker.clock, max_batches=2, hold_seconds=HOLD_SECONDS
        )
        worker.clock.now += 0.6 * HOLD_SECONDS
        assert other.admit(1, mode=DRAIN).events == 0
        second.finish(1, 1.0)
        assert other.admit(1, mode=DRAIN).events == 1

    def test_what_is_to_be_done_then_is_done_once_and_for_workers_only(self) -> None:
        ended: list[str] = []
        clock = Clock()
        for mode in (ONE_BATCH, DRAIN):
            throttle = DestinationThrottle(
                Target(),
                LocalStore(clock),
                clock,
                max_batches=1,
                hold_seconds=1.0,
                on_stuck=lambda: ended.append("ended"),
            )
            throttle.admit(1, mode=mode)
            clock.now += HOLD_SECONDS
            for _ in range(2):
                throttle.admit(1, mode=mode)
            assert ended == ["ended"] * (mode is DRAIN)


class TestGates:
    def test_a_destination_has_one_gate_and_another_of_that_name_its_own(self) -> None:
        throttles, target = Throttles(Settings()), Target()
        assert throttles.of(target) is throttles.of(target)
        assert throttles.of(Target()) is not throttles.of(target)

    def test_without_redis_those_of_one_outbox_share_what_they_know(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.ERROR)
        throttles, target = Throttles(Settings(), Clock()), Target()
        fail(throttles.of(target))
        assert state_of(throttles, target).is_open
        assert not state_of(Throttles(Settings()), target).is_open

    def test_a_destination_that_knows_nothing_of_limits_has_none(self) -> None:
        class Plain:
            name = "plain"
            events = ("*",)
            deliver = Target.deliver

        throttle = Throttles(Settings(drains=1)).of(Plain())
        admission = throttle.admit(100, mode=DRAIN)
        assert (admission.events, admission.at_once) == (100, 1)
        assert throttle.admit(100, mode=DRAIN).events == 0
        assert throttle.limits == Limits()

    def test_places_are_held_for_as_long_as_a_batch_may_take(self) -> None:
        clock = Clock()
        target = Target(Limits(concurrency=1))
        del target.hold_seconds
        died, throttles = (Throttles(Settings(max_run_seconds=50, lease_seconds=10), clock) for _ in range(2))
        throttles._store = died._shared_store()
        died.of(target).admit(1, mode=ONE_BATCH)
        clock.now += 59.9
        assert throttles.of(target).admit(1, mode=ONE_BATCH).events == 0
        clock.now += 0.1
        assert throttles.of(target).admit(1, mode=ONE_BATCH).events == 1

    def test_those_with_calls_that_have_not_returned_in_time_are_reported(self) -> None:
        clock = Clock()
        throttles = Throttles(Settings(max_run_seconds=50, lease_seconds=10, drains=2), clock)
        admission = throttles.of(Target(Limits(concurrency=1))).admit(1, mode=DRAIN)
        clock.now += 49.9
        assert throttles.stuck() == {}
        clock.now += 0.1 + 60
        assert throttles.stuck() == {"target": {"calls": 1, "seconds": 60.0, "all_places": True}}
        admission.finish(1, 110)
        assert throttles.stuck() == {}
