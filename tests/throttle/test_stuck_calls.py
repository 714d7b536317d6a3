"""Calls that never return."""

import logging

import pytest

from outbox.destinations.limits import Limits
from outbox.throttle.delivery_mode import DeliveryMode
from outbox.throttle.destination_throttle import DestinationThrottle
from outbox.throttle.shared_state import LocalStore
from tests.throttle.worker import (
    DRAIN,
    HOLD_SECONDS,
    ONE_BATCH,
    Clock,
    Target,
    Worker,
)


class TestStuckCalls:
    """Calls that never return."""

    @pytest.mark.parametrize("mode", DeliveryMode)
    def test_in_all_slots_admit_nothing_more_and_are_logged_once(
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

    def test_keep_their_slots_for_all_workers(self) -> None:
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

    def test_call_on_stuck_once_and_only_in_a_drain(self) -> None:
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
