"""The circuit breaker: open for longer each time, one probe at a time, and a ramp-up when it closes."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox.destinations.limits import Limits
from outbox.throttle.circuit_breaker import (
    OPEN_TIMES,
    RAMP_PER_SECOND,
    RAMP_SECONDS,
    is_healthy,
    recover,
    trip,
)
from outbox.throttle.decision import decide
from outbox.throttle.rate_limit import BURST_SECONDS
from outbox.throttle.shared_state import ThrottleState
from tests.throttle.fleet import ASK, FREE, HOLD_SECONDS, ORIGINS, PAUSES, Fleet, asking, assert_within, opened, steps


class TestAnOpenBreaker:
    @given(st.integers(1, 10), ORIGINS, st.lists(PAUSES, max_size=40))
    def test_allows_nothing_but_one_probe_at_a_time(self, times: int, origin: float, pauses: list[float]) -> None:
        fleet = Fleet(Limits(5), origin)
        fleet.state = opened(origin, times=times)
        until = fleet.state.open_until
        for pause in pauses:
            fleet.now += pause
            decision = fleet.ask(100, 3)
            assert decision.breaker_open
            assert decision.events == (1 if fleet.now >= until else 0)
            if decision.events:
                assert (decision.probe, decision.at_once) == (True, 1)
                until = fleet.now + HOLD_SECONDS

    def test_is_open_for_longer_each_time(self) -> None:
        state, now, seconds = ThrottleState(), 1.8e9, []
        for _ in range(7):
            state = trip(state, now, "refused", probe=state.is_open)
            seconds.append(state.open_until - now)
            now = state.open_until
            state, decision = decide(state, now, asking(), FREE)
            assert decision.probe
        assert seconds == [5, 10, 20, 40, 60, 60, 60]

    @given(st.integers(1, 10**30))
    def test_is_never_open_for_longer_than_the_cap(self, trips: int) -> None:
        assert 5.0 <= OPEN_TIMES.after(trips) <= OPEN_TIMES.cap_seconds
        assert trip(ThrottleState(trips=trips), 0.0, "", probe=True).open_until <= OPEN_TIMES.cap_seconds

    def test_that_another_worker_has_opened_stays_as_it_is(self) -> None:
        state = opened(100.0)
        assert trip(state, 103.0, "refused, too", probe=False) == state

    def test_is_opened_again_for_longer_by_a_probe_that_fails(self) -> None:
        state, decision = decide(opened(100.0), 105.0, asking(), FREE)
        assert decision.probe
        again = trip(state, 106.0, "still refused", probe=True)
        assert (again.trips, again.open_until, again.error) == (2, 116.0, "still refused")

    def test_tells_others_to_wait_no_longer_than_the_cap_while_a_probe_is_out(self) -> None:
        state, decision = decide(opened(100.0), 105.0, replace(asking(), hold_seconds=330.0), FREE)
        assert decision.probe
        _, other = decide(state, 106.0, asking(), FREE)
        assert (other.events, other.breaker_open) == (0, True)
        assert other.wait_seconds <= OPEN_TIMES.cap_seconds

    def test_says_for_how_long_it_is_open(self) -> None:
        _, decision = decide(opened(100.0), 102.0, asking(), FREE)
        assert (decision.breaker_open, decision.wait_seconds) == (True, 3.0)

    def test_keeps_counting_the_calls_that_are_under_way(self) -> None:
        fleet = Fleet(Limits(2))
        fleet.ask(1)
        fleet.ask(1)
        fleet.trip(probe=False)
        fleet.leave(0)
        fleet.now += 6
        assert fleet.ask(1).probe
        fleet.recover()
        assert (fleet.ask(1).limit_reached, fleet.ask(1).limit_reached) == (False, True)

    def test_is_closed_by_any_worker_that_reaches_the_destination(self) -> None:
        state = recover(opened(100.0, times=7), 200.0)
        assert (state.is_open, state.trips, state.error, state.recovered_at) == (False, 0, "", 200.0)
        # The next outage begins small again.
        assert trip(state, 300.0, "refused", probe=False).open_until == 305.0


class TestTheRampUp:
    @given(ORIGINS, steps(ASK))
    def test_allows_no_more_events_than_its_curve(self, origin: float, steps: list[tuple[float, str, Any]]) -> None:
        fleet = Fleet(FREE, origin)
        fleet.state = opened(origin)
        fleet.recover()
        for _ in fleet.play(steps):
            since = fleet.now - origin
            if since >= RAMP_SECONDS:
                break
            rate = RAMP_PER_SECOND * 2 ** (since / 5)
            assert fleet.admitted == [] or fleet.admitted[-1][1] <= rate * BURST_SECONDS + 1 + 1e-3
            assert_within(fleet.admitted, rate)

    def test_begins_with_five_a_second_and_doubles_every_five_seconds(self) -> None:
        fleet = Fleet(FREE, 1.8e9)
        fleet.state = opened(fleet.now)
        fleet.recover()
        per_second = []
        for _ in range(20):
            before = sum(events for _, events in fleet.admitted)
            for _ in range(100):
                fleet.ask(10_000)
                fleet.now += 0.01
            per_second.append(sum(events for _, events in fleet.admitted) - before)
        assert 5 <= per_second[0] <= 7
        for second in (5, 10, 15):
            assert per_second[second] / per_second[second - 5] == pytest.approx(2, rel=0.2)

    @pytest.mark.parametrize(("since", "all_go"), [(RAMP_SECONDS - 0.01, False), (RAMP_SECONDS, True)])
    def test_ends_after_a_minute(self, since: float, *, all_go: bool) -> None:
        state = recover(opened(100.0), 100.0)
        now = 100.0 + since
        _, decision = decide(state, now, asking(1_000_000), FREE)
        assert (decision.events == 1_000_000) == all_go
        assert is_healthy(state, now) == all_go

    def test_does_not_exceed_a_rate_limit_below_its_curve(self) -> None:
        limits = Limits(per_second=2)
        state = recover(opened(100.0), 100.0)
        for since in (0, 30, 59, 61):
            assert decide(state, 100.0 + since, asking(1_000), limits)[1].events == 1

    def test_is_not_needed_by_a_breaker_that_was_never_open(self) -> None:
        assert is_healthy(ThrottleState(), 0.0)
        assert is_healthy(ThrottleState(), 1.8e9)
        assert not is_healthy(opened(), 1.8e9)

    def test_does_not_begin_again_for_a_late_outcome(self) -> None:
        state = recover(opened(100.0), 200.0)
        assert is_healthy(recover(state, 300.0), 300.0)
