"""The concurrency limit: never more calls under way than allowed, and calls of a dead worker stop counting."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox.destinations.limits import Limits
from outbox.throttle.concurrency_limit import LEAST_WAIT, MOST_WAIT, release
from outbox.throttle.decision import Decision, decide
from outbox.throttle.shared_state import ActiveCalls, ThrottleState
from tests.throttle.fleet import ASK_AT_SPEED, BREAK, FREE, HOLD_SECONDS, LEAVE, ORIGINS, Fleet, asking, steps


class TestCallsUnderWay:
    @given(st.integers(1, 30), ORIGINS, steps(ASK_AT_SPEED, LEAVE))
    def test_are_never_more_than_allowed(
        self, concurrency: int, origin: float, steps: list[tuple[float, str, Any]]
    ) -> None:
        fleet = Fleet(Limits(concurrency), origin)
        for decision in fleet.play(steps):
            assert fleet.calls() <= concurrency
            assert 0 <= decision.at_once <= concurrency
            assert sum(each.calls for each in fleet.state.active_calls.values()) <= concurrency

    @given(st.integers(1, 30), steps(ASK_AT_SPEED, LEAVE, BREAK))
    def test_are_never_more_than_allowed_around_an_outage_but_for_its_probe(
        self, concurrency: int, steps: list[tuple[float, str, Any]]
    ) -> None:
        fleet = Fleet(Limits(concurrency))
        for _ in fleet.play(steps):
            assert fleet.calls() <= concurrency

    @given(st.integers(1, 30), st.integers(1, 100), st.integers(1, 30))
    def test_are_as_many_as_allowed(self, concurrency: int, events: int, at_once: int) -> None:
        fleet = Fleet(Limits(concurrency))
        decisions = [fleet.ask(events, at_once) for _ in range(concurrency)]
        assert sum(decision.at_once for decision in decisions) == min(concurrency, concurrency * min(events, at_once))
        assert all(decision.at_once <= min(events, at_once) for decision in decisions)
        assert decisions[0].events == events

    def test_at_the_limit_leave_nothing_for_the_next_request(self) -> None:
        fleet = Fleet(Limits(2))
        fleet.ask(5, 2)
        before = fleet.state
        decision = fleet.ask(1)
        assert (decision.events, decision.limit_reached, fleet.state) == (0, True, before)

    @pytest.mark.parametrize(
        ("age", "wait"), [(0, LEAST_WAIT), (0.19, LEAST_WAIT), (3, 3), (19, 19), (29, MOST_WAIT), (31, MOST_WAIT)]
    )
    def test_that_began_longer_ago_mean_a_longer_wait(self, age: float, wait: float) -> None:
        state = ThrottleState(active_calls={"old": ActiveCalls(1, 0, 1e9), "new": ActiveCalls(1, 100, 1e9)})
        _, decision = decide(state, 100 + age, asking(), Limits(2))
        assert decision.wait_seconds == pytest.approx(wait, abs=1.01 if wait == MOST_WAIT else 1e-9)
        assert decision.wait_seconds <= MOST_WAIT

    def test_that_have_ended_make_room_at_once(self) -> None:
        fleet = Fleet(Limits(1))
        fleet.ask(1)
        assert fleet.ask(1).limit_reached
        fleet.leave(0)
        assert fleet.ask(1).events == 1

    @pytest.mark.parametrize(("after", "forgotten"), [(HOLD_SECONDS - 0.001, False), (HOLD_SECONDS, True)])
    def test_of_a_dead_worker_stop_counting_when_their_time_is_over(self, after: float, *, forgotten: bool) -> None:
        fleet = Fleet(Limits(1))
        fleet.ask(1)
        fleet.now += after
        assert (fleet.ask(1).events == 1) == forgotten
        assert ("worker 0" not in fleet.state.active_calls) == forgotten

    def test_may_be_released_twice(self) -> None:
        fleet = Fleet(Limits(2))
        fleet.ask(1)
        before = fleet.state
        assert release(before, "an unknown holder") == before
        gone = release(before, "worker 0")
        assert release(gone, "worker 0") == gone == ThrottleState()

    def test_of_one_holder_are_counted_once(self) -> None:
        state = ThrottleState()
        for _ in range(3):
            state, decision = decide(state, 0.0, asking(), Limits(5))
            assert decision.events == 1
        assert len(state.active_calls) == 1

    def test_are_no_more_than_the_events_that_the_rate_limit_allows(self) -> None:
        fleet = Fleet(Limits(concurrency=5, per_second=1))
        decision = fleet.ask(5, 5)
        assert (decision.events, decision.at_once) == (1, 1)
        assert [each.calls for each in fleet.state.active_calls.values()] == [1]

    def test_are_not_counted_without_a_limit(self) -> None:
        state, decision = decide(ThrottleState(), 0.0, asking(100, 7), FREE)
        assert (state, decision) == (ThrottleState(), Decision(100, 7))
