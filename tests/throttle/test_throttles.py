"""The throttles of an outbox: one for each destination, and reports on them."""

import logging

import pytest

from outbox.destinations.limits import Limits
from outbox.settings import Settings
from outbox.throttle.throttles import Throttles
from tests.throttle.worker import (
    DRAIN,
    ONE_BATCH,
    Clock,
    Target,
    fail,
    state_of,
)


class TestThrottles:
    def test_are_one_for_each_destination_object(self) -> None:
        throttles, target = Throttles(Settings()), Target()
        assert throttles.of(target) is throttles.of(target)
        assert throttles.of(Target()) is not throttles.of(target)

    def test_of_one_outbox_share_their_state_without_redis(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.ERROR)
        throttles, target = Throttles(Settings(), Clock()), Target()
        fail(throttles.of(target))
        assert state_of(throttles, target).is_open
        assert not state_of(Throttles(Settings()), target).is_open

    def test_limit_nothing_for_a_destination_without_limits(self) -> None:
        class Plain:
            name = "plain"
            events = ("*",)
            deliver = Target.deliver

        throttle = Throttles(Settings(drains=1)).of(Plain())
        admission = throttle.admit(100, mode=DRAIN)
        assert (admission.events, admission.at_once) == (100, 1)
        assert throttle.admit(100, mode=DRAIN).events == 0
        assert throttle.limits == Limits()

    def test_count_the_calls_of_a_dead_worker_for_as_long_as_a_batch_may_take(self) -> None:
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

    def test_report_calls_that_have_not_returned_in_time(self) -> None:
        clock = Clock()
        throttles = Throttles(Settings(max_run_seconds=50, lease_seconds=10, drains=2), clock)
        admission = throttles.of(Target(Limits(concurrency=1))).admit(1, mode=DRAIN)
        clock.now += 49.9
        assert throttles.stuck() == {}
        clock.now += 0.1 + 60
        assert throttles.stuck() == {"target": {"calls": 1, "seconds": 60.0, "all_places": True}}
        admission.finish(1, 110)
        assert throttles.stuck() == {}
