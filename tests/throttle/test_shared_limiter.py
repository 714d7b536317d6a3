"""Workers that share a Redis share circuit breakers and limits."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Protocol
from uuid import uuid4

import pytest
import redis

from outbox.destinations.limits import Limits
from outbox.destinations.outcome import DELIVERED_OUTCOME
from outbox.settings import Settings
from outbox.throttle.circuit_breaker import OpenTimes
from outbox.throttle.destination_throttle import TIMES, ThrottleTimes
from outbox.throttle.limiters import HEALTH_CHECK_SECONDS
from outbox.throttle.shared_state import ThrottleState
from outbox.throttle.throttles import Throttles
from tests.support.servers import PATIENCE_SECONDS, Redis
from tests.throttle.worker import DRAIN, ONE_BATCH, REFUSED, Clock, Target, close, fail, state_of


class Start(Protocol):
    def __call__(self, times: ThrottleTimes = TIMES) -> Throttles: ...


# Allow a probe as soon as a breaker opens: a test can't move Redis's clock.
SOON_PROBED = ThrottleTimes(breaker=OpenTimes(first_seconds=0.0))


@pytest.fixture
def start(redis_server: Redis) -> Iterator[Start]:
    """Return a function that makes the throttles of another process, with a clock of its own."""
    namespace = f"test-{uuid4().hex}"
    with ExitStack() as stack:

        def start(times: ThrottleTimes = TIMES) -> Throttles:
            settings = Settings(redis_url=redis_server.url, namespace=namespace)
            throttles = Throttles(settings, Clock(), times=times)
            stack.callback(close, throttles)
            return throttles

        yield start


@pytest.fixture
def client(redis_server: Redis) -> Iterator[Any]:
    with redis.Redis.from_url(redis_server.url) as client:
        yield client


def let_pass(throttles: Throttles, seconds: float) -> None:
    assert isinstance(throttles._clock, Clock)
    throttles._clock.now += seconds


class TestWorkersThatShareARedis:
    def test_see_within_a_second_that_another_has_opened_the_breaker(self, start: Start) -> None:
        here, there, target = start(), start(), Target()
        assert there.of(target).admit(10, mode=ONE_BATCH).events == 10
        fail(here.of(target))
        let_pass(there, HEALTH_CHECK_SECONDS - 0.01)
        assert there.of(target).admit(10, mode=ONE_BATCH).events == 10
        let_pass(there, 0.01)
        admission = there.of(target).admit(10, mode=ONE_BATCH)
        assert (admission.events, admission.decision.breaker_open) == (0, True)
        assert state_of(there, target).error == "refused"

    def test_see_after_one_event_that_comes_alone_that_another_has_opened_the_breaker(self, start: Start) -> None:
        here, there, target = start(), start(), Target()
        there.of(target).admit(1, mode=ONE_BATCH).finish(1, 0.1)
        fail(here.of(target))
        let_pass(there, 60 * HEALTH_CHECK_SECONDS)
        admission = there.of(target).admit(1, mode=ONE_BATCH)
        assert (admission.events, admission.decision.breaker_open) == (1, False)
        admission.finish(1, 0.1)
        admission = there.of(target).admit(1, mode=ONE_BATCH)
        assert (admission.events, admission.decision.breaker_open) == (0, True)

    def test_send_no_second_event_before_they_have_seen_it(self, start: Start) -> None:
        here, there, target = start(), start(), Target()
        there.of(target).admit(1, mode=ONE_BATCH).finish(1, 0.1)
        fail(here.of(target))
        let_pass(there, HEALTH_CHECK_SECONDS)
        assert [there.of(target).admit(1, mode=ONE_BATCH).events for _ in range(2)] == [1, 0]

    def test_count_failures_each_by_itself(self, start: Start) -> None:
        here, there, target = start(), start(), Target()
        for throttles in (here, there):
            fail(throttles.of(target), 4)
        assert not state_of(here, target).is_open
        fail(there.of(target), 1)
        assert state_of(here, target).is_open

    def test_count_anew_after_another_has_closed_the_breaker(self, start: Start) -> None:
        here, there, target = start(SOON_PROBED), start(SOON_PROBED), Target()
        fail(here.of(target))
        there.of(target).admit(1, mode=DRAIN).record_outcome(DELIVERED_OUTCOME)
        fail(here.of(target), 4)
        assert not state_of(here, target).is_open
        fail(here.of(target), 1)
        assert state_of(here, target).is_open

    def test_send_one_probe_together(self, start: Start) -> None:
        workers, target = [start(SOON_PROBED) for _ in range(3)], Target()
        fail(workers[0].of(target))
        admissions = [throttles.of(target).admit(10, mode=DRAIN) for throttles in workers]
        assert [admission.events for admission in admissions] == [1, 0, 0]

    def test_all_see_that_a_probe_has_closed_the_breaker(self, start: Start) -> None:
        here, there, target = start(SOON_PROBED), start(SOON_PROBED), Target()
        fail(here.of(target))
        there.of(target).admit(10, mode=DRAIN).record_outcome(DELIVERED_OUTCOME)
        assert not state_of(here, target).is_open
        # And all together ramp up.
        assert [throttles.of(target).admit(10, mode=DRAIN).events for throttles in (here, there)] == [1, 0]

    def test_all_see_that_a_probe_has_failed(self, start: Start) -> None:
        here, there, target = start(SOON_PROBED), start(), Target()
        fail(here.of(target))
        probe = there.of(target).admit(10, mode=DRAIN)
        probe.record_outcome(REFUSED)
        admission = here.of(target).admit(10, mode=DRAIN)
        assert (admission.events, state_of(here, target).trips) == (0, 2)
        assert admission.decision.wait_seconds == pytest.approx(10, abs=2)

    def test_do_not_prolong_an_open_breaker_by_late_failures(self, start: Start) -> None:
        here, there, target = start(), start(), Target()
        fail(here.of(target))
        until = state_of(here, target).open_until
        fail(there.of(target), 20)
        assert (state_of(here, target).open_until, state_of(here, target).trips) == (until, 1)

    def test_make_one_call_at_a_time_with_a_concurrency_of_one(self, start: Start) -> None:
        target = Target(Limits(concurrency=1))
        throttles = [start(), start()]
        inside, most = threading.Semaphore(1), []

        def work(number: int) -> int:
            done = 0
            throttle = throttles[number % 2].of(target)
            while done < 10:
                admission = throttle.admit(1, mode=DRAIN if number % 2 else ONE_BATCH)
                if admission.events:
                    most.append(inside.acquire(blocking=False))
                    done += 1
                    inside.release()
                admission.finish(admission.events, 0.001)
            return done

        with ThreadPoolExecutor(4) as executor:
            assert list(executor.map(work, range(4), timeout=PATIENCE_SECONDS)) == [10] * 4
        assert all(most)
        assert state_of(throttles[0], target).active_calls == {}

    def test_share_the_concurrency_limit(self, start: Start) -> None:
        here, there, target = start(), start(), Target(Limits(concurrency=5), at_once=3)
        first = here.of(target).admit(100, mode=DRAIN)
        second = there.of(target).admit(100, mode=DRAIN)
        assert (first.at_once, second.at_once) == (3, 2)
        assert here.of(target).admit(100, mode=DRAIN).decision.limit_reached
        first.finish(0, 0)
        assert there.of(target).admit(100, mode=DRAIN).at_once == 3

    def test_share_the_rate_limit(self, start: Start) -> None:
        here, there, target = start(), start(), Target(Limits(per_second=0.1))
        first = here.of(target).admit(6, mode=ONE_BATCH)
        second = there.of(target).admit(6, mode=ONE_BATCH)
        assert (first.events, second.events) == (1, 0)
        assert second.decision.delay_seconds(0) > first.decision.delay_seconds(4)

    def test_read_a_state_from_before_the_clock_was_set_back_as_if_written_now(self, start: Start, client: Any) -> None:
        """A test can't move Redis's clock: it moves the times in the state to tomorrow instead."""
        here, target = start(SOON_PROBED), Target()
        fail(here.of(target))
        (key,) = client.scan_iter(f"{here._settings.namespace}:*")
        state, day = ThrottleState.from_json(client.get(key)), 24 * 3600
        later = replace(state, open_until=state.open_until + day, written_at=state.written_at + day)
        assert state.written_at > day
        client.set(key, later.to_json())
        admission = start().of(target).admit(10, mode=ONE_BATCH)
        assert (admission.events, admission.decision.probe) == (1, True)

    def test_do_not_share_with_other_destinations_and_queues(self, start: Start, redis_server: Redis) -> None:
        here, target = start(), Target()
        other = Target(name="other")
        fail(here.of(target))
        assert here.of(other).admit(10, mode=ONE_BATCH).events == 10
        elsewhere = Throttles(Settings(redis_url=redis_server.url, namespace=here._settings.namespace, queue="another"))
        assert elsewhere.of(target).admit(10, mode=ONE_BATCH).events == 10
        close(elsewhere)
