"""A throttle: no worker sends to a destination that can't be reached, and a limited one gets no more than it may."""

import pytest

from outbox.destinations.limits import Limits
from outbox.destinations.outcome import DELIVERED_OUTCOME, Failed, Outcome, Retry
from outbox.errors import Unavailable
from outbox.throttle.circuit_breaker import RAMP_SECONDS
from outbox.throttle.delivery_mode import DeliveryMode
from outbox.throttle.destination_throttle import Admission
from outbox.throttle.limiters import HEALTH_CHECK_SECONDS
from tests.throttle.worker import DRAIN, HOLD_SECONDS, ONE_BATCH, REFUSED, Worker

OPENED = (
    "The circuit breaker of target is open: no events are sent to the destination for %d seconds, "
    "since it could not be reached: refused"
)


class TestTheBreakerOpens:
    def test_after_so_many_failures_in_a_row(self) -> None:
        worker = Worker(Limits(open_after=3))
        for _ in range(2):
            worker.try_one(REFUSED)
        assert not worker.is_open()
        worker.try_one(REFUSED)
        assert worker.is_open()
        assert worker.state.error == "refused"

    @pytest.mark.parametrize("outcome", [DELIVERED_OUTCOME, Retry("no"), Failed("never")])
    def test_not_if_another_outcome_comes_in_between(self, outcome: Outcome) -> None:
        worker = Worker(Limits(open_after=3))
        for _ in range(5):
            worker.try_one(REFUSED)
            worker.try_one(REFUSED)
            worker.try_one(outcome)
        assert not worker.is_open()

    def test_after_five_failures_by_default(self) -> None:
        worker = Worker()
        for _ in range(4):
            worker.try_one(REFUSED)
        assert not worker.is_open()
        worker.try_one(REFUSED)
        assert worker.is_open()

    def test_never_with_open_after_none(self) -> None:
        worker = Worker(Limits(open_after=None))
        for _ in range(100):
            assert worker.try_one(REFUSED).events == 1
        assert not worker.is_open()

    def test_after_failures_in_one_batch(self) -> None:
        worker = Worker()
        admission = worker.throttle.admit(10, mode=ONE_BATCH)
        for _ in range(4):
            admission.record_outcome(REFUSED)
        assert not worker.is_open()
        admission.record_outcome(REFUSED)
        assert admission.is_withdrawn
        assert worker.is_open()

    def test_and_withdraws_earlier_admissions_of_this_process(self) -> None:
        worker = Worker()
        before = worker.throttle.admit(10, mode=ONE_BATCH)
        worker.open()
        assert before.is_withdrawn
        assert not worker.throttle.admit(10, mode=ONE_BATCH).is_withdrawn

    def test_and_its_error_is_a_part_of_one_line_of_the_log(self, caplog: pytest.LogCaptureFixture) -> None:
        worker = Worker(Limits(open_after=1))
        worker.try_one(Unavailable("away\nERROR forged \x1b[2J\u202e"))
        (message,) = caplog.messages
        assert message.isprintable()

    def test_and_says_for_how_long(self) -> None:
        worker = Worker()
        worker.open()
        worker.clock.now += 2
        admission = worker.throttle.admit(10, mode=ONE_BATCH)
        assert (admission.events, admission.decision.breaker_open, admission.decision.wait_seconds) == (0, True, 3.0)

    def test_and_the_log_says_so_once(self, caplog: pytest.LogCaptureFixture) -> None:
        worker = Worker()
        admission = worker.throttle.admit(20, mode=ONE_BATCH)
        for _ in range(20):
            admission.record_outcome(REFUSED)
        assert caplog.messages == [OPENED % 5]


class TestAProbe:
    def probe(self, worker: Worker, *, after: float = 5.0) -> Admission:
        worker.clock.now += after
        admission = worker.throttle.admit(10, mode=DRAIN)
        assert (admission.events, admission.at_once, admission.decision.probe) == (1, 1, True)
        return admission

    def test_is_one_event_when_the_breaker_was_open_for_long_enough(self) -> None:
        worker = Worker()
        worker.open()
        worker.clock.now += 4.9
        assert worker.events() == 0
        self.probe(worker, after=0.1)
        assert worker.events() == 0

    @pytest.mark.parametrize("outcome", [DELIVERED_OUTCOME, Retry("no"), Failed("never")])
    def test_that_reaches_the_destination_closes_the_breaker(
        self, outcome: Outcome, caplog: pytest.LogCaptureFixture
    ) -> None:
        worker = Worker()
        worker.open()
        caplog.clear()
        self.probe(worker).record_outcome(outcome)
        assert not worker.is_open()
        assert caplog.messages == ["The circuit breaker of target is closed: the destination was reached again"]

    def test_that_succeeds_is_followed_by_a_ramp_up(self) -> None:
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

    def test_that_fails_opens_the_breaker_for_longer(self, caplog: pytest.LogCaptureFixture) -> None:
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

    def test_without_an_outcome_is_followed_by_another_when_its_time_is_over(self) -> None:
        worker = Worker()
        worker.open()
        self.probe(worker)
        worker.clock.now += HOLD_SECONDS - 0.1
        assert worker.events() == 0
        self.probe(worker, after=0.1)

    def test_that_was_not_sent_is_followed_by_another_at_once(self) -> None:
        worker = Worker()
        worker.open()
        self.probe(worker).finish(0, 0.01)
        worker.clock.now += 5
        assert worker.events() == 1

    def test_is_not_withdrawn_by_late_failures_of_other_batches(self) -> None:
        worker = Worker(Limits(open_after=1))
        late = worker.throttle.admit(2, mode=ONE_BATCH)
        late.record_outcome(REFUSED)
        probe = self.probe(worker)
        late.record_outcome(REFUSED)
        assert not probe.is_withdrawn

    def test_that_succeeded_is_not_undone_by_a_late_failure_of_another_batch(self) -> None:
        worker = Worker(Limits(open_after=3))
        late = worker.throttle.admit(10, mode=ONE_BATCH)
        for _ in range(3):
            late.record_outcome(REFUSED)
        self.probe(worker).record_outcome(DELIVERED_OUTCOME)
        late.record_outcome(REFUSED)
        assert not worker.is_open()

    def test_needs_no_slot_of_the_process(self) -> None:
        worker = Worker(max_batches=1)
        worker.throttle.admit(1, mode=DRAIN)
        worker.open()
        self.probe(worker)


class TestWithoutLimits:
    def test_the_state_of_a_healthy_destination_is_read_once_a_second(self) -> None:
        worker = Worker()
        for _ in range(100):
            assert worker.try_one(DELIVERED_OUTCOME, events=100).events == 100
            worker.clock.now += HEALTH_CHECK_SECONDS / 101
        assert worker.store.updates == 1
        worker.clock.now += HEALTH_CHECK_SECONDS / 10
        worker.try_one(DELIVERED_OUTCOME)
        assert worker.store.updates == 2

    def test_the_state_is_read_each_time_after_an_outage(self) -> None:
        worker = Worker()
        worker.open()
        worker.clock.now += 5
        worker.try_one(DELIVERED_OUTCOME)
        before = worker.store.updates
        for _ in range(5):
            worker.events()
        assert worker.store.updates == before + 5

    def test_neither_batches_nor_speed_limit_a_single_batch(self) -> None:
        worker = Worker(max_batches=1)
        worker.throttle.measure_speed(1, 10.0, 1)
        for _ in range(5):
            assert worker.events(10_000, mode=ONE_BATCH) == 10_000


class TestARateLimit:
    @pytest.mark.parametrize("mode", DeliveryMode)
    def test_is_never_exceeded(self, *, mode: DeliveryMode) -> None:
        worker = Worker(Limits(per_second=50), max_batches=1_000)
        gone = 0
        for _ in range(1_000):
            gone += worker.events(500, mode=mode)
            worker.clock.now += 0.01
        assert 500 <= gone <= 500 + 5 + 1

    @pytest.mark.parametrize("per_second", [1, 5, 10, 15, 50])
    def test_is_used_up_although_events_come_a_little_late(self, per_second: int) -> None:
        worker = Worker(Limits(per_second=per_second), max_batches=1_000)
        began_at = worker.clock.now
        waiting = [0.0] * 100
        while waiting:
            come = [delay for delay in waiting if began_at + delay <= worker.clock.now]
            waiting = [delay for delay in waiting if began_at + delay > worker.clock.now]
            if come:
                admission = worker.throttle.admit(len(come), mode=ONE_BATCH)
                now = worker.clock.now - began_at
                waiting += [
                    now + admission.decision.delay_seconds(number) for number in range(len(come) - admission.events)
                ]
            worker.clock.now += 0.05  # as a timer would fire
        assert worker.clock.now - began_at == pytest.approx(100 / per_second, rel=0.1)

    def test_lets_events_go_at_the_times_that_they_were_given(self) -> None:
        worker = Worker(Limits(per_second=10), max_batches=1_000)
        admission = worker.throttle.admit(30, mode=DRAIN)
        began_at = worker.clock.now
        delays = sorted({admission.decision.delay_seconds(number) for number in range(30 - admission.events)})
        gone = admission.events
        for delay in delays:
            worker.clock.now = began_at + delay
            gone += worker.events(1, mode=DRAIN)
        assert gone == 30
        assert worker.clock.now - began_at == pytest.approx(3, abs=0.2)


class TestAnAdmission:
    def test_makes_room_when_it_is_finished(self) -> None:
        worker = Worker(Limits(concurrency=1))
        admission = worker.throttle.admit(1, mode=ONE_BATCH)
        assert worker.events() == 0
        admission.finish(1, 0.1)
        assert worker.events() == 100

    def test_takes_as_many_slots_as_it_may_make_calls(self) -> None:
        worker = Worker(Limits(concurrency=5), at_once=3)
        admissions = [worker.throttle.admit(100, mode=ONE_BATCH) for _ in range(3)]
        assert [admission.at_once for admission in admissions] == [3, 2, 0]
        assert [admission.events for admission in admissions] == [100, 100, 0]

    def test_takes_no_more_slots_than_it_has_events(self) -> None:
        worker = Worker(Limits(concurrency=5), at_once=5)
        assert worker.throttle.admit(2, mode=ONE_BATCH).at_once == 2
        assert worker.throttle.admit(100, mode=ONE_BATCH).at_once == 3
