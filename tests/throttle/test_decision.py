"""Decisions on requests, whatever the state and whatever is requested."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox.destinations.limits import Limits
from outbox.errors import RegistrationError
from outbox.throttle.circuit_breaker import (
    recover,
    trip,
)
from outbox.throttle.concurrency_limit import release
from outbox.throttle.decision import Request, decide
from outbox.throttle.rate_limit import HORIZON_SECONDS
from outbox.throttle.shared_state import ThrottleState
from tests.throttle.fleet import STATES, Fleet, asking


class TestADecision:
    @given(
        STATES,
        st.floats(0, 4e9),
        st.builds(asking, st.integers(1, 10**6), st.integers(1, 10**4), speed=st.none() | st.floats(1e-9, 1e12)),
        st.builds(Limits, st.none() | st.integers(1, 10**9), st.none() | st.floats(1e-100, 1e100)),
    )
    def test_is_valid_for_every_state_and_request(
        self, state: ThrottleState, now: float, request: Request, limits: Limits
    ) -> None:
        after, decision = decide(state, now, request, limits)
        assert 0 <= decision.events <= request.events
        assert 0 <= decision.at_once <= request.at_once
        assert decision.at_once > 0 or not decision.events
        for number in (0, 1, request.events):
            assert 0 <= decision.delay_seconds(number) <= HORIZON_SECONDS
        for following in (after, release(after, "me"), trip(after, now, "", probe=True), recover(after, now)):
            assert ThrottleState.from_json(following.to_json()) == following

    @pytest.mark.parametrize("per_second", [5e-324, 1e-310, 1e-300, 1e-9, 1e9, 1e300, 1.7e308])
    def test_is_valid_at_the_limits_of_what_a_rate_can_be(self, per_second: float) -> None:
        try:
            fleet = Fleet(Limits(per_second=per_second), 1.8e9)
        except RegistrationError:
            return  # what can't be counted with may be refused
        for _ in range(3):
            decision = fleet.ask(10)
            assert 0 <= decision.delay_seconds(0) <= decision.delay_seconds(9) <= HORIZON_SECONDS
            fleet.now += 1
