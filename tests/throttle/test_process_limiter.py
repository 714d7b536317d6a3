"""The limit of a process: so many batches at the same time, and about a second's work in each."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox.destinations.limits import Limits
from outbox.throttle.destination_throttle import LEAST_HORIZON_SECONDS, ThrottleTimes
from outbox.throttle.rate_limit import BURST_SECONDS
from tests.support.servers import PATIENCE_SECONDS
from tests.throttle.worker import DRAIN, HOLD_SECONDS, Worker


class TestBatches:
    """The destination has no concurrency limit of its own."""

    def test_beyond_the_limit_are_not_admitted(self) -> None:
        worker = Worker(max_batches=3)
        admissions = [worker.throttle.admit(10, mode=DRAIN) for _ in range(3)]
        assert [admission.events for admission in admissions] == [10, 10, 10]
        waited: list[int] = []
        turned_away = worker.throttle.admit(10, mode=DRAIN, on_wait=lambda: waited.append(1))
        assert (turned_away.events, turned_away.decision.limit_reached) == (0, True)
        assert waited
        admissions[0].finish(0, 0)
        assert worker.events(mode=DRAIN) == 100

    def test_that_were_not_admitted_release_nothing(self) -> None:
        worker = Worker(max_batches=1)
        worker.throttle.admit(10, mode=DRAIN)
        worker.throttle.admit(10, mode=DRAIN).finish(0, 0)
        assert worker.events(mode=DRAIN) == 0

    def test_wait_for_a_slot_that_is_released_in_a_moment(self) -> None:
        worker = Worker(max_batches=1, times=ThrottleTimes(patience_seconds=PATIENCE_SECONDS))
        busy = worker.throttle.admit(10, mode=DRAIN)
        assert worker.throttle.admit(10, mode=DRAIN, on_wait=lambda: busy.finish(0, 0)).events == 10

    def test_that_wait_come_before_one_that_has_just_ended(self) -> None:
        times = ThrottleTimes(patience_seconds=PATIENCE_SECONDS, look_seconds=PATIENCE_SECONDS)
        worker = Worker(max_batches=1, times=times)
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

    def test_do_not_wait_for_a_slot_that_was_taken_long_ago(self) -> None:
        worker = Worker(max_batches=1)
        worker.throttle.admit(10, mode=DRAIN)
        worker.clock.now += 7
        waited: list[int] = []
        admission = worker.throttle.admit(10, mode=DRAIN, on_wait=lambda: waited.append(1))
        assert (admission.events, admission.decision.wait_seconds, waited) == (0, 7.0, [])

    @pytest.mark.parametrize("seconds", [HOLD_SECONDS - 0.1, HOLD_SECONDS, 10 * HOLD_SECONDS])
    def test_keep_their_slot_until_their_calls_return(self, seconds: float) -> None:
        worker = Worker(max_batches=1)
        admission = worker.throttle.admit(10, mode=DRAIN)
        worker.clock.now += seconds
        assert worker.events(mode=DRAIN) == 0
        admission.finish(1, seconds)
        assert worker.events(mode=DRAIN) > 0

    def test_have_one_slot_however_many_calls_they_make(self) -> None:
        worker = Worker(max_batches=2, at_once=8)
        admissions = [worker.throttle.admit(100, mode=DRAIN) for _ in range(2)]
        assert [(admission.events, admission.at_once) for admission in admissions] == [(100, 8), (100, 8)]
        assert worker.events(mode=DRAIN) == 0

    def test_may_make_all_their_calls_when_the_speed_is_known(self) -> None:
        worker = Worker(max_batches=2, at_once=8)
        worker.throttle.measure_speed(80, 1.0, 8)
        admission = worker.throttle.admit(1_000, mode=DRAIN)
        assert (admission.events, admission.at_once) == (80, 8)

    def test_are_not_limited_if_the_destination_has_a_concurrency_limit(self) -> None:
        worker = Worker(Limits(concurrency=5), max_batches=1)
        assert [worker.events(mode=DRAIN) for _ in range(6)] == [100] * 5 + [0]

    def test_that_are_not_admitted_use_up_nothing_of_the_rate_limit(self) -> None:
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

    def test_the_rest_is_put_off_at_the_speed_of_all_slots_together(self) -> None:
        worker = Worker(max_batches=2)
        worker.throttle.measure_speed(20, 2.0, 1)
        decision = worker.throttle.admit(1_000, mode=DRAIN).decision
        assert decision.events == 10
        assert decision.step_seconds == pytest.approx(1 / (10 * 2))
        assert 0.5 <= decision.delay_seconds(0) <= 0.6

    def test_later_batches_are_put_off_behind_earlier_ones(self) -> None:
        worker = Worker()
        worker.throttle.measure_speed(20, 2.0, 1)
        first = worker.throttle.admit(30, mode=DRAIN).decision
        second = worker.throttle.admit(30, mode=DRAIN).decision
        assert second.delay_seconds(0) >= first.delay_seconds(19)

    def test_the_measured_speed_follows_by_a_third_each_time(self) -> None:
        worker = Worker(max_batches=1_000)
        worker.throttle.measure_speed(90, 1.0, 1)
        speeds = []
        for _ in range(3):
            worker.throttle.measure_speed(30, 1.0, 1)
            speeds.append(worker.events(1_000, mode=DRAIN))
        assert speeds == [70, 57, 48]

    def test_one_slow_call_puts_off_the_rest_for_some_seconds_and_not_for_minutes(self) -> None:
        worker = Worker(max_batches=1)
        worker.throttle.measure_speed(1, 4.6, 1)
        decision = worker.throttle.admit(80, mode=DRAIN).decision
        assert decision.events == 1
        assert [decision.delay_seconds(number) for number in (0, 1, 2, 78)] == pytest.approx([4.6, 9.2, 9.2, 9.2])

    def test_the_rest_is_put_off_for_longer_the_longer_the_speed_was_measured(self) -> None:
        worker = Worker(max_batches=4)
        longest = []
        for _ in range(4):
            worker.throttle.measure_speed(1, 100.0, 1)
            longest.append(worker.throttle.admit(10_000, mode=DRAIN).decision.delay_seconds(9_998))
        assert longest == [200.0, 400.0, 600.0, 600.0]

    def test_a_speed_that_was_hardly_measured_puts_events_off_for_some_seconds(self) -> None:
        worker = Worker()
        worker.throttle.measure_speed(1, 0.5, 1)
        assert worker.throttle.admit(100, mode=DRAIN).decision.delay_seconds(97) == LEAST_HORIZON_SECONDS

    def test_a_rate_limit_puts_events_off_until_their_turn_however_short_the_speed_was_measured(self) -> None:
        worker = Worker(Limits(per_second=0.5))
        worker.throttle.measure_speed(10, 1.0, 1)
        decision = worker.throttle.admit(100, mode=DRAIN).decision
        assert (decision.events, decision.delay_seconds(98)) == (1, 198.0)

    def test_several_calls_at_the_same_time_are_that_much_faster(self) -> None:
        worker = Worker(Limits(concurrency=4), at_once=4)
        worker.throttle.measure_speed(40, 2.0, 4)  # five a second each
        assert worker.events(1_000, mode=DRAIN) == 20

    def test_a_batch_without_outcomes_does_not_change_the_speed(self) -> None:
        worker = Worker()
        worker.throttle.admit(1, mode=DRAIN).finish(0, 1_000.0)
        assert worker.events(1_000, mode=DRAIN) == 1_000

    @given(st.lists(st.tuples(st.integers(1, 10_000), st.just(0.0) | st.floats(1e-9, 1e6), st.integers(0, 100))))
    def test_at_least_one_event_is_admitted_at_any_speed(self, took: list[tuple[int, float, int]]) -> None:
        worker = Worker()
        for events, seconds, at_once in took:
            worker.throttle.measure_speed(events, seconds, at_once)
        assert 1 <= worker.events(1_000, mode=DRAIN) <= 1_000
