"""The rate limit: no more events a second than allowed, and a time for each event that has to wait."""

import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from outbox.destinations.limits import Limits
from outbox.throttle.decision import decide
from outbox.throttle.rate_limit import BURST_SECONDS, HORIZON_SECONDS
from outbox.throttle.shared_state import ThrottleState
from tests.throttle.fleet import ASK, ASK_AT_SPEED, BREAK, FREE, LEAVE, ORIGINS, Fleet, asking, assert_within, steps


class TestTheRate:
    @given(st.floats(1e-3, 2e3), ORIGINS, steps(ASK_AT_SPEED, LEAVE))
    @example(10.0, 1.8e9, [(pause, "ask", (500, 1)) for pause in [0.0, 0.05, 0.05, 0.1, 0.1, 0.0999999, 0.2] * 5])
    def test_is_not_exceeded_in_any_period(
        self, per_second: float, origin: float, steps: list[tuple[float, str, Any]]
    ) -> None:
        fleet = Fleet(Limits(per_second=per_second), origin)
        for _ in fleet.play(steps):
            pass
        assert_within(fleet.admitted, per_second)

    @given(st.floats(1e-3, 2e3), steps(ASK, BREAK))
    @example(0.001, [(0, "ask", (1, 1)), (0, "trip", False), (5, "ask", (1, 1)), (0, "recover", None)] * 5)
    def test_is_not_exceeded_around_outages(self, per_second: float, steps: list[tuple[float, str, Any]]) -> None:
        fleet = Fleet(Limits(per_second=per_second))
        for _ in fleet.play(steps):
            pass
        assert_within(fleet.admitted, per_second)

    @given(st.floats(0.1, 1e4), ORIGINS)
    @example(7.0, 1_000.0)
    @example(10.0, 1.8e9)
    @example(4442.821489017649, 123456.789)
    def test_is_used_up_by_a_worker_that_asks_often(self, per_second: float, origin: float) -> None:
        fleet = Fleet(Limits(per_second=per_second), origin)
        pause = BURST_SECONDS / 3
        for _ in range(200):
            fleet.ask(10_000)
            fleet.now += pause
        at_least, at_first = per_second * 199 * pause, per_second * BURST_SECONDS
        assert at_least - 1 <= sum(events for _, events in fleet.admitted) <= at_least + at_first + 2

    @given(st.floats(1e-3, 2e3), steps(ASK_AT_SPEED, LEAVE))
    def test_gives_waiting_events_times_one_after_another_up_to_the_horizon(
        self, per_second: float, steps: list[tuple[float, str, Any]]
    ) -> None:
        fleet = Fleet(Limits(per_second=per_second))
        last = -math.inf
        asked = iter([argument[0] for _, what, argument in steps if what == "ask"])
        for decision in fleet.play(steps):
            left = next(asked) - decision.events
            if not left:
                continue
            times = [fleet.now + decision.delay_seconds(number) for number in range(left)]
            assert times == sorted(times)
            assert fleet.now <= times[0]
            assert times[-1] <= fleet.now + HORIZON_SECONDS
            # But for what is at the horizon anyway.
            assert times[0] >= min(last, fleet.now + HORIZON_SECONDS) - 1e-6
            last = times[-1]

    def test_gives_waiting_events_times_one_step_apart(self) -> None:
        fleet = Fleet(Limits(per_second=0.1))
        decision = fleet.ask(3)
        assert (decision.events, decision.step_seconds) == (1, 10.0)
        assert [decision.delay_seconds(number) for number in range(2)] == [10.0, 20.0]

    def test_is_not_affected_by_events_that_waited_long_ago(self) -> None:
        fleet = Fleet(Limits(per_second=1))
        fleet.ask(100_000)
        fleet.now += HORIZON_SECONDS + 100
        assert fleet.ask(2).delay_seconds(0) <= 2

    def test_lets_an_event_go_at_the_time_that_it_was_given(self) -> None:
        fleet = Fleet(Limits(per_second=0.1))
        decision = fleet.ask(6)
        for number in range(5):
            fleet.now = decision.delay_seconds(number)
            assert fleet.ask(1).events == 1

    @pytest.mark.parametrize("per_second", [1e-100, 1e-9, 0.001, 0.1, 3, 1_000, 1e9, 1e100])
    def test_lets_the_first_event_go_at_once(self, per_second: float) -> None:
        assert Fleet(Limits(per_second=per_second), 1.8e9).ask(1).events == 1

    @pytest.mark.parametrize("origin", [1_000.0, 1.8e9], ids=["own clock", "Redis's clock"])
    def test_lets_a_tenth_of_a_seconds_events_go_at_once(self, origin: float) -> None:
        fleet = Fleet(Limits(per_second=100), origin)
        assert fleet.ask(50).events == 10
        assert fleet.ask(40).events == 0
        fleet.now += 0.05
        assert fleet.ask(40).events == 5

    def test_is_not_saved_up_while_no_event_comes(self) -> None:
        fleet = Fleet(Limits(per_second=100), 1.8e9)
        fleet.ask(50)
        fleet.now += 3_600
        assert fleet.ask(10_000).events <= 10


class TestTheMeasuredSpeed:
    @given(st.floats(1e-3, 1e6), st.integers(1, 10_000), st.integers(1, 50))
    def test_limits_a_batch_to_about_a_second_of_work(self, speed: float, events: int, at_once: int) -> None:
        _, decision = decide(ThrottleState(), 0.0, asking(events, at_once, speed=speed), FREE)
        calls = min(at_once, events)
        assert decision.at_once == calls
        assert decision.events == min(events, max(calls, math.ceil(speed * calls)))

    def test_sets_the_times_of_waiting_events(self) -> None:
        _, decision = decide(ThrottleState(), 0.0, asking(100, speed=5.0), FREE)
        assert (decision.events, decision.step_seconds) == (5, 0.2)
        assert decision.delay_seconds(0) >= 1.0
        assert decision.delay_seconds(10) == pytest.approx(decision.delay_seconds(0) + 2.0)

    def test_of_all_calls_together_sets_the_times_however_few_are_free_now(self) -> None:
        """Otherwise events that came when one call was free would be put off as if there were only one."""
        limits = Limits(concurrency=8)
        state, _ = decide(ThrottleState(), 0.0, asking(7, 7), limits)
        _, decision = decide(state, 0.0, asking(100, 8, holder="another", speed=5.0), limits)
        assert (decision.at_once, decision.events) == (1, 5)
        assert decision.step_seconds == pytest.approx(1 / (5.0 * 8))

    def test_that_is_unknown_limits_nothing(self) -> None:
        _, decision = decide(ThrottleState(), 0.0, asking(10_000), FREE)
        assert decision.events == 10_000

    @given(st.floats(1e-3, 1e4), st.floats(1e-3, 1e4))
    def test_counts_if_it_is_lower_than_the_rate(self, speed: float, rate: float) -> None:
        _, decision = decide(ThrottleState(), 0.0, asking(1_000_000, speed=speed), Limits(per_second=rate))
        assert decision.step_seconds == pytest.approx(1 / min(speed, rate))
