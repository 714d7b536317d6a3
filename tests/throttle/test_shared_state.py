"""The shared state: as JSON, and after the clock of the store was set back."""

import json
from dataclasses import replace

import pytest
from hypothesis import given

from outbox.destinations.limits import Limits
from outbox.throttle.circuit_breaker import (
    OPEN_TIMES,
    RAMP_SECONDS,
    is_healthy,
    recover,
)
from outbox.throttle.decision import decide
from outbox.throttle.shared_state import SKEW_SECONDS, ActiveCalls, ThrottleState
from tests.throttle.fleet import (
    FREE,
    HOLD_SECONDS,
    STATES,
    asking,
    opened,
)


class TestJson:
    @given(STATES)
    def test_keeps_the_state(self, state: ThrottleState) -> None:
        text = state.to_json()
        assert ThrottleState.from_json(text) == state
        assert ThrottleState.from_json(text).to_json() == text

    @given(STATES)
    def test_of_another_version_may_have_unknown_fields(self, state: ThrottleState) -> None:
        fields = json.loads(state.to_json()) | {"mood": "sunny", "__slots__": 1, "open": True}
        assert ThrottleState.from_json(json.dumps(fields)) == state

    def test_of_another_version_may_have_unknown_fields_of_calls(self) -> None:
        state = ThrottleState(active_calls={"me": ActiveCalls(1, 2.0, 3.0)})
        fields = json.loads(state.to_json())
        fields["places"]["me"]["host"] = "a"
        assert ThrottleState.from_json(json.dumps(fields)) == state

    def test_of_another_version_may_lack_fields(self) -> None:
        assert ThrottleState.from_json("{}") == ThrottleState()
        assert ThrottleState.from_json('{"trips":2}') == ThrottleState(trips=2)


@pytest.mark.parametrize("back", [2.0, 3600.0, 1e9], ids=["seconds", "an hour", "decades"])
class TestAClockThatIsSetBack:
    """As Redis's is when its host's clock is corrected: the times in the state are then in the future by as much."""

    NOW = 1.8e9

    def read(self, state: ThrottleState, back: float) -> ThrottleState:
        return replace(state, written_at=self.NOW).corrected_for_clock(self.NOW - back)

    @pytest.mark.parametrize("times", [1, 9])
    def test_keeps_a_breaker_open_for_as_long_as_before(self, back: float, times: int) -> None:
        state = self.read(opened(self.NOW, times=times), back)
        opens_at = self.NOW - back + OPEN_TIMES.after(times)
        assert decide(state, opens_at - 0.01, asking(), FREE)[1].events == 0
        assert decide(state, opens_at + 0.01, asking(), FREE)[1].probe

    def test_does_not_make_calls_count_for_longer(self, back: float) -> None:
        one = Limits(concurrency=1)
        state = self.read(decide(ThrottleState(), self.NOW, asking(holder="gone"), one)[0], back)
        assert decide(state, self.NOW - back + HOLD_SECONDS - 0.01, asking(), one)[1].limit_reached
        assert decide(state, self.NOW - back + HOLD_SECONDS + 0.01, asking(), one)[1].events == 1

    @pytest.mark.parametrize("per_second", [0.01, 10.0])
    def test_does_not_delay_the_next_event(self, back: float, per_second: float) -> None:
        limited = Limits(per_second=per_second)
        state = self.read(decide(ThrottleState(), self.NOW, asking(), limited)[0], back)
        assert decide(state, self.NOW - back + 1.01 / per_second, asking(), limited)[1].events == 1

    def test_does_not_put_events_behind_those_that_were_put_off_before(self, back: float) -> None:
        limited = Limits(per_second=1.0)
        state = self.read(decide(ThrottleState(), self.NOW, asking(10), limited)[0], back)
        assert decide(state, self.NOW - back, asking(), limited)[1].wait_seconds <= 11.0

    def test_does_not_prolong_a_ramp_up(self, back: float) -> None:
        state = self.read(recover(opened(self.NOW), self.NOW), back)
        assert not is_healthy(state, self.NOW - back + RAMP_SECONDS - 0.01)
        assert is_healthy(state, self.NOW - back + RAMP_SECONDS + 0.01)


@pytest.mark.parametrize("passed", [-SKEW_SECONDS, 0.0, 3600.0])
def test_a_clock_that_goes_on_changes_nothing(passed: float) -> None:
    state = replace(opened(100.0), written_at=100.0)
    assert state.corrected_for_clock(100.0 + passed) is state
