"""Decisions on requests: limits hold in whatever order requests come, and calls of a dead worker stop counting."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from outbox.destinations.limits import Limits
from outbox.errors import RegistrationError
from outbox.throttle.circuit_breaker import (
    OPEN_CAP_SECONDS,
    RAMP_PER_SECOND,
    RAMP_SECONDS,
    is_healthy,
    open_seconds,
    recover,
    trip,
)
from outbox.throttle.concurrency_limit import LEAST_WAIT, MOST_WAIT, release
from outbox.throttle.decision import Decision, Request, decide
from outbox.throttle.rate_limit import BURST_SECONDS, HORIZON_SECONDS
from outbox.throttle.shared_state import SKEW_SECONDS, ActiveCalls, ThrottleState

# When it begins: a process's own clock, and Redis's.
ORIGINS = st.sampled_from([0.0, 123_456.789, 1.8e9])
PAUSES = st.sampled_from([0.0, 0.001, 0.02, 0.1, 0.5, 1.0, 3.0, 7.0, 61.0]) | st.floats(0, 100)
HOLD_SECONDS = 20.0
FREE = Limits()


def asking(events: int = 1, at_once: int = 1, *, holder: str = "me", speed: float | None = None) -> Request:
    return Request(holder, events, at_once, HOLD_SECONDS, speed)


def opened(now: float = 0.0, *, times: int = 1) -> ThrottleState:
    """Left alone since now, after so many times in a row."""
    state = ThrottleState()
    for _ in range(times):
        state = trip(state, now, "refused", probe=True)
    return state


class Fleet:
    """Workers that ask, leave, die, trip and recover, as the test says; and what they have got."""

    def __init__(self, limits: Limits, origin: float = 0.0) -> None:
        self.limits = limits
        self.state = ThrottleState()
        self.now = origin
        self.holding: dict[str, ActiveCalls] = {}
        self.admitted: list[tuple[float, int]] = []
        self.recovered_at: float | None = None
        self._names = (f"worker {number}" for number in range(1_000_000))

    def ask(self, events: int, at_once: int = 1, speed: float | None = None) -> Decision:
        holder = next(self._names)
        request = asking(events, at_once, holder=holder, speed=speed)
        self.state, decision = decide(self.state, self.now, request, self.limits)
        if decision.events:
            self.admitted.append((self.now, decision.events))
            if not decision.probe:
                self.holding[holder] = ActiveCalls(decision.at_once, self.now, self.now + HOLD_SECONDS)
        return decision

    def leave(self, number: int) -> None:
        if self.holding:
            holder = list(self.holding)[number % len(self.holding)]
            del self.holding[holder]
            self.state = release(self.state, holder)

    def trip(self, *, probe: bool) -> None:
        self.state = trip(self.state, self.now, "refused", probe=probe)

    def recover(self) -> None:
        self.state = recover(self.state, self.now)
        self.recovered_at = self.now

    def calls(self) -> int:
        """Under way, but for those whose time has passed."""
        return sum(place.calls for place in self.holding.values() if place.until > self.now)

    def play(self, steps: list[tuple[float, str, Any]]) -> Iterator[Decision]:
        """Do all this: after so many seconds, what, and with what."""
        for pause, what, argument in steps:
            self.now += pause
            if what == "ask":
                yield self.ask(*argument)
            elif what == "leave":
                self.leave(argument)
            elif what == "trip":
                self.trip(probe=argument)
            else:
                self.recover()


ASK = st.tuples(st.just("ask"), st.tuples(st.integers(1, 500), st.integers(1, 20)))
ASK_AT_SPEED = st.tuples(
    st.just("ask"), st.tuples(st.integers(1, 500), st.integers(1, 20), st.none() | st.floats(1e-3, 1e6))
)
LEAVE = st.tuples(st.just("leave"), st.integers(0, 100))
BREAK = st.tuples(st.just("trip"), st.booleans()) | st.just(("recover", None))


def steps(*kinds: st.SearchStrategy[tuple[str, Any]]) -> st.SearchStrategy[list[tuple[float, str, Any]]]:
    """What happens, each a while after the other."""
    step = st.tuples(PAUSES, st.one_of(*kinds)).map(lambda pair: (pair[0], *pair[1]))
    return st.lists(step, max_size=40)


class TestPlaces:
    @given(st.integers(1, 30), ORIGINS, steps(ASK_AT_SPEED, LEAVE))
    def test_no_more_calls_are_under_way_than_allowed(
        self, concurrency: int, origin: float, steps: list[tuple[float, str, Any]]
    ) -> None:
        fleet = Fleet(Limits(concurrency), origin)
        for decision in fleet.play(steps):
            assert fleet.calls() <= concurrency
            assert 0 <= decision.at_once <= concurrency
            assert sum(place.calls for place in fleet.state.active_calls.values()) <= concurrency

    @given(st.integers(1, 30), steps(ASK_AT_SPEED, LEAVE, BREAK))
    def test_not_even_around_an_outage_but_for_its_probe(
        self, concurrency: int, steps: list[tuple[float, str, Any]]
    ) -> None:
        fleet = Fleet(Limits(concurrency))
        for _ in fleet.play(steps):
            assert fleet.calls() <= concurrency

    @given(st.integers(1, 30), st.integers(1, 100), st.integers(1, 30))
    def test_all_places_are_given_out(self, concurrency: int, events: int, at_once: int) -> None:
        fleet = Fleet(Limits(concurrency))
        decisions = [fleet.ask(events, at_once) for _ in range(concurrency)]
        assert sum(decision.at_once for decision in decisions) == min(concurrency, concurrency * min(events, at_once))
        assert all(decision.at_once <= min(events, at_once) for decision in decisions)
        assert decisions[0].events == events

    def test_one_who_asks_when_all_are_taken_is_told_so_and_takes_nothing(self) -> None:
        fleet = Fleet(Limits(2))
        fleet.ask(5, 2)
        before = fleet.state
        decision = fleet.ask(1)
        assert (decision.events, decision.limit_reached, fleet.state) == (0, True, before)

    @pytest.mark.parametrize(
        ("age", "wait"), [(0, LEAST_WAIT), (0.19, LEAST_WAIT), (3, 3), (19, 19), (29, MOST_WAIT), (31, MOST_WAIT)]
    )
    def test_the_longer_they_have_been_taken_the_later_it_is_worth_another_look(self, age: float, wait: float) -> None:
        state = ThrottleState(active_calls={"old": ActiveCalls(1, 0, 1e9), "new": ActiveCalls(1, 100, 1e9)})
        _, decision = decide(state, 100 + age, asking(), Limits(2))
        assert decision.wait_seconds == pytest.approx(wait, abs=1.01 if wait == MOST_WAIT else 1e-9)
        assert decision.wait_seconds <= MOST_WAIT

    def test_a_place_that_was_left_is_free_at_once(self) -> None:
        fleet = Fleet(Limits(1))
        fleet.ask(1)
        assert fleet.ask(1).limit_reached
        fleet.leave(0)
        assert fleet.ask(1).events == 1

    @pytest.mark.parametrize(("after", "forgotten"), [(HOLD_SECONDS - 0.001, False), (HOLD_SECONDS, True)])
    def test_who_never_leaves_is_forgotten_when_its_time_is_over(self, after: float, *, forgotten: bool) -> None:
        fleet = Fleet(Limits(1))
        fleet.ask(1)
        fleet.now += after
        assert (fleet.ask(1).events == 1) == forgotten
        assert ("worker 0" not in fleet.state.active_calls) == forgotten

    def test_who_leaves_twice_or_without_a_place_changes_nothing(self) -> None:
        fleet = Fleet(Limits(2))
        fleet.ask(1)
        before = fleet.state
        assert release(before, "nobody") == before
        gone = release(before, "worker 0")
        assert release(gone, "worker 0") == gone == ThrottleState()

    def test_who_asks_again_has_one_place_and_not_two(self) -> None:
        state = ThrottleState()
        for _ in range(3):
            state, decision = decide(state, 0.0, asking(), Limits(5))
            assert decision.events == 1
        assert len(state.active_calls) == 1

    def test_of_few_turns_one_holds_no_more_places_than_it_has_calls_to_make(self) -> None:
        fleet = Fleet(Limits(concurrency=5, per_second=1))
        decision = fleet.ask(5, 5)
        assert (decision.events, decision.at_once) == (1, 1)
        assert [place.calls for place in fleet.state.active_calls.values()] == [1]

    def test_without_a_limit_there_are_none_to_keep(self) -> None:
        state, decision = decide(ThrottleState(), 0.0, asking(100, 7), FREE)
        assert (state, decision) == (ThrottleState(), Decision(100, 7))


class TestTurns:
    @given(st.floats(1e-3, 2e3), ORIGINS, steps(ASK_AT_SPEED, LEAVE))
    @example(10.0, 1.8e9, [(pause, "ask", (500, 1)) for pause in [0.0, 0.05, 0.05, 0.1, 0.1, 0.0999999, 0.2] * 5])
    def test_no_window_of_time_sees_more_events_than_its_share(
        self, per_second: float, origin: float, steps: list[tuple[float, str, Any]]
    ) -> None:
        fleet = Fleet(Limits(per_second=per_second), origin)
        for _ in fleet.play(steps):
            pass
        assert_within(fleet.admitted, per_second)

    @given(st.floats(1e-3, 2e3), steps(ASK, BREAK))
    @example(0.001, [(0, "ask", (1, 1)), (0, "trip", False), (5, "ask", (1, 1)), (0, "recover", None)] * 5)
    def test_nor_does_one_with_outages_in_it(self, per_second: float, steps: list[tuple[float, str, Any]]) -> None:
        fleet = Fleet(Limits(per_second=per_second))
        for _ in fleet.play(steps):
            pass
        assert_within(fleet.admitted, per_second)

    @given(st.floats(0.1, 1e4), ORIGINS)
    @example(7.0, 1_000.0)
    @example(10.0, 1.8e9)
    @example(4442.821489017649, 123456.789)
    def test_whoever_asks_often_gets_all_of_it(self, per_second: float, origin: float) -> None:
        fleet = Fleet(Limits(per_second=per_second), origin)
        pause = BURST_SECONDS / 3
        for _ in range(200):
            fleet.ask(10_000)
            fleet.now += pause
        at_least, at_first = per_second * 199 * pause, per_second * BURST_SECONDS
        assert at_least - 1 <= sum(events for _, events in fleet.admitted) <= at_least + at_first + 2

    @given(st.floats(1e-3, 2e3), steps(ASK_AT_SPEED, LEAVE))
    def test_those_who_have_to_wait_get_turns_one_behind_the_other_and_none_too_far_away(
        self, per_second: float, steps: list[tuple[float, str, Any]]
    ) -> None:
        fleet = Fleet(Limits(per_second=per_second))
        last = -math.inf
        asked = iter([argument[0] for _, what, argument in steps if what == "ask"])
        for decision in fleet.play(steps):
            left = next(asked) - decision.events
            if not left:
                continue
            turns = [fleet.now + decision.delay_seconds(number) for number in range(left)]
            assert turns == sorted(turns)
            assert fleet.now <= turns[0]
            assert turns[-1] <= fleet.now + HORIZON_SECONDS
            # But for what is at the horizon anyway.
            assert turns[0] >= min(last, fleet.now + HORIZON_SECONDS) - 1e-6
            last = turns[-1]

    def test_a_turn_is_when_the_next_is_on_schedule(self) -> None:
        fleet = Fleet(Limits(per_second=0.1))
        decision = fleet.ask(3)
        assert (decision.events, decision.step_seconds) == (1, 10.0)
        assert [decision.delay_seconds(number) for number in range(2)] == [10.0, 20.0]

    def test_a_crowd_of_long_ago_does_not_keep_others_waiting(self) -> None:
        fleet = Fleet(Limits(per_second=1))
        fleet.ask(100_000)
        fleet.now += HORIZON_SECONDS + 100
        assert fleet.ask(2).delay_seconds(0) <= 2

    def test_whoever_comes_at_its_turn_may_go(self) -> None:
        fleet = Fleet(Limits(per_second=0.1))
        decision = fleet.ask(6)
        for number in range(5):
            fleet.now = decision.delay_seconds(number)
            assert fleet.ask(1).events == 1

    @pytest.mark.parametrize("per_second", [1e-100, 1e-9, 0.001, 0.1, 3, 1_000, 1e9, 1e100])
    def test_the_first_one_goes_at_once_whatever_the_rate(self, per_second: float) -> None:
        assert Fleet(Limits(per_second=per_second), 1.8e9).ask(1).events == 1

    @pytest.mark.parametrize("origin", [1_000.0, 1.8e9], ids=["own clock", "Redis's clock"])
    def test_a_tenth_of_a_seconds_worth_goes_at_once(self, origin: float) -> None:
        fleet = Fleet(Limits(per_second=100), origin)
        assert fleet.ask(50).events == 10
        assert fleet.ask(40).events == 0
        fleet.now += 0.05
        assert fleet.ask(40).events == 5

    def test_what_was_not_used_for_long_is_not_made_up_for(self) -> None:
        fleet = Fleet(Limits(per_second=100), 1.8e9)
        fleet.ask(50)
        fleet.now += 3_600
        assert fleet.ask(10_000).events <= 10


class TestSpeed:
    @given(st.floats(1e-3, 1e6), st.integers(1, 10_000), st.integers(1, 50))
    def test_one_gets_about_as_much_as_it_can_do_in_a_second(self, speed: float, events: int, at_once: int) -> None:
        _, decision = decide(ThrottleState(), 0.0, asking(events, at_once, speed=speed), FREE)
        calls = min(at_once, events)
        assert decision.at_once == calls
        assert decision.events == min(events, max(calls, math.ceil(speed * calls)))

    def test_the_others_turns_come_as_fast_as_it_is(self) -> None:
        _, decision = decide(ThrottleState(), 0.0, asking(100, speed=5.0), FREE)
        assert (decision.events, decision.step_seconds) == (5, 0.2)
        assert decision.delay_seconds(0) >= 1.0
        assert decision.delay_seconds(10) == pytest.approx(decision.delay_seconds(0) + 2.0)

    def test_those_of_all_places_together_however_few_are_free_now(self) -> None:
        """Else a queue that was met when all but one were taken would go on as if there were only that one."""
        limits = Limits(concurrency=8)
        state, _ = decide(ThrottleState(), 0.0, asking(7, 7), limits)
        _, decision = decide(state, 0.0, asking(100, 8, holder="another", speed=5.0), limits)
        assert (decision.at_once, decision.events) == (1, 5)
        assert decision.step_seconds == pytest.approx(1 / (5.0 * 8))

    def test_who_does_not_know_its_speed_gets_everything(self) -> None:
        _, decision = decide(ThrottleState(), 0.0, asking(10_000), FREE)
        assert decision.events == 10_000

    @given(st.floats(1e-3, 1e4), st.floats(1e-3, 1e4))
    def test_the_slower_of_speed_and_rate_counts(self, speed: float, rate: float) -> None:
        _, decision = decide(ThrottleState(), 0.0, asking(1_000_000, speed=speed), Limits(per_second=rate))
        assert decision.step_seconds == pytest.approx(1 / min(speed, rate))


class TestOpen:
    @given(st.integers(1, 10), ORIGINS, st.lists(PAUSES, max_size=40))
    def test_nobody_gets_in_but_one_probe_at_a_time(self, times: int, origin: float, pauses: list[float]) -> None:
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

    def test_the_times_grow(self) -> None:
        state, now, seconds = ThrottleState(), 1.8e9, []
        for _ in range(7):
            state = trip(state, now, "refused", probe=state.is_open)
            seconds.append(state.open_until - now)
            now = state.open_until
            state, decision = decide(state, now, asking(), FREE)
            assert decision.probe
        assert seconds == [5, 10, 20, 40, 60, 60, 60]

    @given(st.integers(1, 10**30))
    def test_they_never_grow_beyond_the_cap(self, trips: int) -> None:
        assert 5.0 <= open_seconds(trips) <= OPEN_CAP_SECONDS
        assert trip(ThrottleState(trips=trips), 0.0, "", probe=True).open_until <= OPEN_CAP_SECONDS

    def test_what_somebody_else_has_opened_stays_as_it_is(self) -> None:
        state = opened(100.0)
        assert trip(state, 103.0, "refused, too", probe=False) == state

    def test_a_probe_that_fails_opens_it_again_for_longer(self) -> None:
        state, decision = decide(opened(100.0), 105.0, asking(), FREE)
        assert decision.probe
        again = trip(state, 106.0, "still refused", probe=True)
        assert (again.trips, again.open_until, again.error) == (2, 116.0, "still refused")

    def test_while_a_probe_is_out_nobody_waits_for_longer_than_for_the_next_try(self) -> None:
        state, decision = decide(opened(100.0), 105.0, replace(asking(), hold_seconds=330.0), FREE)
        assert decision.probe
        _, other = decide(state, 106.0, asking(), FREE)
        assert (other.events, other.breaker_open) == (0, True)
        assert other.wait_seconds <= OPEN_CAP_SECONDS

    def test_it_says_how_long_it_is_open(self) -> None:
        _, decision = decide(opened(100.0), 102.0, asking(), FREE)
        assert (decision.breaker_open, decision.wait_seconds) == (True, 3.0)

    def test_whoever_is_still_busy_keeps_its_place_meanwhile(self) -> None:
        fleet = Fleet(Limits(2))
        fleet.ask(1)
        fleet.ask(1)
        fleet.trip(probe=False)
        fleet.leave(0)
        fleet.now += 6
        assert fleet.ask(1).probe
        fleet.recover()
        assert (fleet.ask(1).limit_reached, fleet.ask(1).limit_reached) == (False, True)

    def test_it_is_closed_by_whoever_reaches_it(self) -> None:
        state = recover(opened(100.0, times=7), 200.0)
        assert (state.is_open, state.trips, state.error, state.recovered_at) == (False, 0, "", 200.0)
        # The next outage begins small again.
        assert trip(state, 300.0, "refused", probe=False).open_until == 305.0


class TestRamp:
    @given(ORIGINS, steps(ASK))
    def test_after_an_outage_no_more_go_than_the_curve_allows(
        self, origin: float, steps: list[tuple[float, str, Any]]
    ) -> None:
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

    def test_it_begins_with_five_a_second_and_doubles_every_five(self) -> None:
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
    def test_after_a_minute_as_many_go_as_come(self, since: float, *, all_go: bool) -> None:
        state = recover(opened(100.0), 100.0)
        now = 100.0 + since
        _, decision = decide(state, now, asking(1_000_000), FREE)
        assert (decision.events == 1_000_000) == all_go
        assert is_healthy(state, now) == all_go

    def test_a_limit_below_the_curve_holds_during_and_after_it(self) -> None:
        limits = Limits(per_second=2)
        state = recover(opened(100.0), 100.0)
        for since in (0, 30, 59, 61):
            assert decide(state, 100.0 + since, asking(1_000), limits)[1].events == 1

    def test_one_that_was_never_open_is_calm(self) -> None:
        assert is_healthy(ThrottleState(), 0.0)
        assert is_healthy(ThrottleState(), 1.8e9)
        assert not is_healthy(opened(), 1.8e9)

    def test_it_does_not_begin_again_for_a_late_answer_when_it_is_closed_already(self) -> None:
        state = recover(opened(100.0), 200.0)
        assert is_healthy(recover(state, 300.0), 300.0)


PLACES = st.builds(ActiveCalls, st.integers(1, 100), st.floats(0, 4e9), st.floats(0, 4e9))
STATES = st.builds(
    ThrottleState,
    trips=st.integers(0, 10**30),
    open_until=st.floats(0, 4e9),
    error=st.text(),
    recovered_at=st.none() | st.floats(0, 4e9),
    active_calls=st.dictionaries(st.text(), PLACES, max_size=5),
    next_at=st.floats(0, 4e9),
    tail_at=st.floats(0, 4e9),
    written_at=st.floats(0, 4e9),
)


class TestAsJson:
    @given(STATES)
    def test_it_is_the_same_afterwards(self, state: ThrottleState) -> None:
        text = state.to_json()
        assert ThrottleState.from_json(text) == state
        assert ThrottleState.from_json(text).to_json() == text

    @given(STATES)
    def test_what_another_version_knows_beyond_is_left_out(self, state: ThrottleState) -> None:
        fields = json.loads(state.to_json()) | {"mood": "sunny", "__slots__": 1, "open": True}
        assert ThrottleState.from_json(json.dumps(fields)) == state

    def test_also_what_it_knows_beyond_about_a_place(self) -> None:
        state = ThrottleState(active_calls={"me": ActiveCalls(1, 2.0, 3.0)})
        fields = json.loads(state.to_json())
        fields["places"]["me"]["host"] = "a"
        assert ThrottleState.from_json(json.dumps(fields)) == state

    def test_what_another_version_does_not_know_is_as_at_the_beginning(self) -> None:
        assert ThrottleState.from_json("{}") == ThrottleState()
        assert ThrottleState.from_json('{"trips":2}') == ThrottleState(trips=2)


class TestWhateverIsAsked:
    @given(
        STATES,
        st.floats(0, 4e9),
        st.builds(asking, st.integers(1, 10**6), st.integers(1, 10**4), speed=st.none() | st.floats(1e-9, 1e12)),
        st.builds(Limits, st.none() | st.integers(1, 10**9), st.none() | st.floats(1e-100, 1e100)),
    )
    def test_there_is_an_answer(self, state: ThrottleState, now: float, request: Request, limits: Limits) -> None:
        after, decision = decide(state, now, request, limits)
        assert 0 <= decision.events <= request.events
        assert 0 <= decision.at_once <= request.at_once
        assert decision.at_once > 0 or not decision.events
        for number in (0, 1, request.events):
            assert 0 <= decision.delay_seconds(number) <= HORIZON_SECONDS
        for following in (after, release(after, "me"), trip(after, now, "", probe=True), recover(after, now)):
            assert ThrottleState.from_json(following.to_json()) == following

    @pytest.mark.parametrize("per_second", [5e-324, 1e-310, 1e-300, 1e-9, 1e9, 1e300, 1.7e308])
    def test_also_at_the_ends_of_what_a_rate_can_be(self, per_second: float) -> None:
        try:
            fleet = Fleet(Limits(per_second=per_second), 1.8e9)
        except RegistrationError:
            return  # what can't be counted with may be refused
        for _ in range(3):
            decision = fleet.ask(10)
            assert 0 <= decision.delay_seconds(0) <= decision.delay_seconds(9) <= HORIZON_SECONDS
            fleet.now += 1


def assert_within(admitted: list[tuple[float, int]], per_second: float) -> None:
    """No stretch of time has seen more than its share, and what may go together."""
    burst = max(1.0, per_second * BURST_SECONDS)
    for first, (began_at, _) in enumerate(admitted):
        events = 0
        for at, number in admitted[first:]:
            events += number
            assert events <= per_second * (at - began_at) * 1.001 + burst + 1 + 1e-3


@pytest.mark.parametrize("back", [2.0, 3600.0, 1e9], ids=["seconds", "an hour", "decades"])
class TestAClockThatGoesBack:
    """As Redis's does when its host is set right: what was decided before lies ahead by as much."""

    NOW = 1.8e9

    def read(self, state: ThrottleState, back: float) -> ThrottleState:
        return replace(state, written_at=self.NOW).corrected_for_clock(self.NOW - back)

    @pytest.mark.parametrize("times", [1, 9])
    def test_leaves_a_destination_alone_for_as_long_as_before(self, back: float, times: int) -> None:
        state = self.read(opened(self.NOW, times=times), back)
        opens_at = self.NOW - back + open_seconds(times)
        assert decide(state, opens_at - 0.01, asking(), FREE)[1].events == 0
        assert decide(state, opens_at + 0.01, asking(), FREE)[1].probe

    def test_does_not_keep_places_for_longer_than_they_are_held(self, back: float) -> None:
        one = Limits(concurrency=1)
        state = self.read(decide(ThrottleState(), self.NOW, asking(holder="gone"), one)[0], back)
        assert decide(state, self.NOW - back + HOLD_SECONDS - 0.01, asking(), one)[1].limit_reached
        assert decide(state, self.NOW - back + HOLD_SECONDS + 0.01, asking(), one)[1].events == 1

    @pytest.mark.parametrize("per_second", [0.01, 10.0])
    def test_does_not_hold_up_turns(self, back: float, per_second: float) -> None:
        limited = Limits(per_second=per_second)
        state = self.read(decide(ThrottleState(), self.NOW, asking(), limited)[0], back)
        assert decide(state, self.NOW - back + 1.01 / per_second, asking(), limited)[1].events == 1

    def test_does_not_put_anybody_behind_those_who_were_put_off(self, back: float) -> None:
        limited = Limits(per_second=1.0)
        state = self.read(decide(ThrottleState(), self.NOW, asking(10), limited)[0], back)
        assert decide(state, self.NOW - back, asking(), limited)[1].wait_seconds <= 11.0

    def test_does_not_slow_down_a_destination_that_has_recovered_for_longer_than_usual(self, back: float) -> None:
        state = self.read(recover(opened(self.NOW), self.NOW), back)
        assert not is_healthy(state, self.NOW - back + RAMP_SECONDS - 0.01)
        assert is_healthy(state, self.NOW - back + RAMP_SECONDS + 0.01)


@pytest.mark.parametrize("passed", [-SKEW_SECONDS, 0.0, 3600.0])
def test_a_clock_that_goes_on_moves_nothing(passed: float) -> None:
    state = replace(opened(100.0), written_at=100.0)
    assert state.corrected_for_clock(100.0 + passed) is state
