"""Stores in memory and in Redis: no change of a state is lost, however many threads and processes make them."""

import json
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from outbox.storage.redis_client import make_client
from outbox.throttle.redis_store import KEPT_MILLISECONDS, RedisStore
from outbox.throttle.shared_state import LocalStore, StateStore, ThrottleState
from tests.support.flights import flights
from tests.support.program import run_python
from tests.support.servers import PATIENCE_SECONDS, Redis
from tests.throttle.states import NAME, begin_call, count, look, read_clock

COUNTING = """
import sys
from dataclasses import replace
from outbox.throttle.redis_store import RedisStore
from outbox.storage.redis_client import make_client

kept = RedisStore(make_client(sys.argv[1]), sys.argv[2])
for _ in range(100):
    print(kept.update("the destination", lambda state, _: (replace(state, trips=state.trips + 1), state.trips + 1)))
"""


def count_from_threads(kept: StateStore, threads: int, each: int) -> list[int]:
    """Count from several threads that begin together; return the result of each change."""
    barrier = threading.Barrier(threads, timeout=PATIENCE_SECONDS)

    def run(_: int) -> list[int]:
        barrier.wait()
        return [kept.update(NAME, count) for _ in range(each)]

    with ThreadPoolExecutor(threads) as executor:
        return [decision for decisions in executor.map(run, range(threads)) for decision in decisions]


@contextmanager
def switching_often() -> Iterator[None]:
    """Make Python switch between threads after a few instructions."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


class TestTheLocalStore:
    def test_loses_no_change_of_many_threads(self) -> None:
        kept = LocalStore()
        with switching_often():
            decisions = count_from_threads(kept, 8, 500)
        assert sorted(decisions) == list(range(1, 4_001))
        assert kept.update(NAME, look) == ThrottleState(trips=4_000)

    def test_has_an_empty_state_for_each_new_name(self) -> None:
        kept = LocalStore()
        kept.update(NAME, count)
        assert kept.update("another", look) == ThrottleState()

    def test_is_unchanged_and_unlocked_after_an_error_in_a_decision(self) -> None:
        kept = LocalStore()
        kept.update(NAME, count)
        with pytest.raises(ZeroDivisionError):
            kept.update(NAME, lambda state, _: (state, 1 / 0))
        assert kept.update(NAME, count) == 2

    def test_uses_the_clock_that_it_was_given(self) -> None:
        assert LocalStore(lambda: 17.0).update(NAME, read_clock) == 17.0


@pytest.fixture
def client(redis_server: Redis) -> Iterator[Any]:
    with make_client(redis_server.url, response_timeout=20) as client:
        yield client


@pytest.fixture
def kept(client: Any, prefix: str) -> RedisStore:
    return RedisStore(client, prefix)


class TestTheRedisStore:
    def test_loses_no_change_of_many_threads(self, kept: RedisStore) -> None:
        decisions = count_from_threads(kept, 8, 25)
        assert sorted(decisions) == list(range(1, 201))
        assert kept.update(NAME, look).trips == 200

    def test_makes_the_threads_of_a_process_wait_for_each_other(self, client: Any, prefix: str) -> None:
        """Otherwise an update that finds the state changed too often would give up, and decide without Redis."""
        kept = RedisStore(client, prefix, conflict_seconds=0)  # one try
        kept.update(NAME, look)
        with switching_often():
            decisions = count_from_threads(kept, 8, 25)
        assert sorted(decisions) == list(range(1, 201))

    def test_loses_no_change_of_many_processes(self, kept: RedisStore, redis_server: Redis, prefix: str) -> None:
        with ThreadPoolExecutor(3) as executor:
            said = list(executor.map(lambda _: run_python(COUNTING, redis_server.url, prefix), range(3)))
        assert sorted(int(line) for text in said for line in text.split()) == list(range(1, 301))
        assert kept.update(NAME, look).trips == 300

    def test_sees_what_another_process_has_written(self, kept: RedisStore, client: Any, prefix: str) -> None:
        other = RedisStore(client, prefix)
        for number in range(1, 10):
            assert (kept.update(NAME, count), other.update(NAME, look).trips) == (number, number)

    def test_decides_again_if_the_state_was_changed_meanwhile(self, kept: RedisStore, client: Any, prefix: str) -> None:
        other = RedisStore(client, prefix)
        seen = []

        def overtaken(state: ThrottleState, now: float) -> tuple[ThrottleState, int]:
            seen.append(state.trips)
            if len(seen) == 1:
                other.update(NAME, count)
            return count(state, now)

        kept.update(NAME, look)
        assert kept.update(NAME, overtaken) == 2
        assert seen == [0, 1]
        assert other.update(NAME, look).trips == 2

    def test_gives_up_if_the_state_changes_all_the_time(self, client: Any, prefix: str) -> None:
        kept = RedisStore(client, prefix, conflict_seconds=0.05)
        other = RedisStore(client, prefix)

        def overtaken(state: ThrottleState, now: float) -> tuple[ThrottleState, int]:
            other.update(NAME, count)
            return count(state, now)

        with pytest.raises(TimeoutError, match="other workers kept changing the state"):
            kept.update(NAME, overtaken)

    def test_needs_one_round_trip_if_no_other_process_has_changed_the_state(self, kept: RedisStore) -> None:
        kept.update(NAME, count)
        with flights() as sent:
            for _ in range(10):
                kept.update(NAME, count)
                kept.update(NAME, look)
        assert len(sent) == 20

    def test_needs_two_round_trips_for_a_state_that_it_does_not_know(
        self, kept: RedisStore, client: Any, prefix: str
    ) -> None:
        kept.update(NAME, count)
        other = RedisStore(client, prefix)
        with flights() as sent:
            other.update(NAME, count)
        assert len(sent) == 2
        with flights() as sent:
            kept.update(NAME, count)
        assert len(sent) == 2

    def test_uses_the_clock_of_the_server(self, kept: RedisStore, client: Any) -> None:
        for _ in range(2):
            seconds, micros = client.time()
            assert abs(kept.update(NAME, read_clock) - (seconds + micros / 1e6)) < 5

    def test_advances_the_clock_between_two_readings(self, kept: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
        first = kept.update(NAME, read_clock)
        real = time.monotonic
        monkeypatch.setattr(time, "monotonic", lambda: real() + 100)
        assert 100 <= kept.update(NAME, read_clock) - first < 105
        # And by then it has been read again.
        assert 0 <= kept.update(NAME, read_clock) - first < 5

    def test_writes_nothing_for_a_look_and_sets_an_expiry(self, kept: RedisStore, client: Any, prefix: str) -> None:
        kept.update(NAME, look)
        assert not client.exists(prefix + NAME)
        kept.update(NAME, count)
        assert 0 < client.pttl(prefix + NAME) <= KEPT_MILLISECONDS

    def test_begins_empty_after_a_deletion(self, kept: RedisStore, client: Any, prefix: str) -> None:
        kept.update(NAME, count)
        client.delete(prefix + NAME)
        assert kept.update(NAME, count) == 1

    def test_loads_its_script_again_if_the_server_has_lost_it(self, kept: RedisStore, client: Any) -> None:
        kept.update(NAME, count)
        client.script_flush()
        assert kept.update(NAME, count) == 2

    @pytest.mark.parametrize(
        "garbage",
        [
            b"nonsense",
            b"",
            b"[]",
            b"7",
            b"null",
            b"\xff\xfe",
            b'{"places": 1}',
            b'{"places": {"me": {}}}',
        ],
    )
    def test_replaces_what_is_not_a_state(self, kept: RedisStore, client: Any, prefix: str, garbage: bytes) -> None:
        client.set(prefix + NAME, garbage)
        assert kept.update(NAME, begin_call("me")).events == 1
        assert kept.update(NAME, begin_call("you")).limit_reached
        assert json.loads(client.get(prefix + NAME))["places"].keys() == {"me"}
