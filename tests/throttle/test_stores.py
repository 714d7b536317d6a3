"""Where states are kept: no change is lost, however many make them, and whatever becomes of Redis."""

import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
import redis

from outbox.destinations.handler import Handler
from outbox.destinations.limits import Limits
from outbox.storage.redis_client import make_client
from outbox.throttle import fallback_store, redis_store
from outbox.throttle.decision import Decision, Request, decide
from outbox.throttle.delivery_mode import DeliveryMode
from outbox.throttle.destination_throttle import DestinationThrottle
from outbox.throttle.fallback_store import FallbackStore
from outbox.throttle.redis_store import KEPT_MILLISECONDS, RedisStore
from outbox.throttle.shared_state import ThrottleState
from outbox.throttle.state_store import LocalStore, StateStore
from outbox.throttle.throttles import RESPONSE_TIMEOUT
from tests.flights import flights
from tests.program import run_python
from tests.servers import Redis, RedisServer

NAME = "the destination"
ONE = Limits(concurrency=1)
OWN, SHARED = "this process applies circuit breakers and limits by itself", "are shared by all workers"


def count(state: ThrottleState, now: float) -> tuple[ThrottleState, int]:
    return replace(state, trips=state.trips + 1), state.trips + 1


def look(state: ThrottleState, now: float) -> tuple[ThrottleState, ThrottleState]:
    return state, state


def read_clock(state: ThrottleState, now: float) -> tuple[ThrottleState, float]:
    return state, now


def take_place(holder: str) -> Callable[[ThrottleState, float], tuple[ThrottleState, Decision]]:
    return lambda state, now: decide(state, now, Request(holder, 1), ONE)


def count_from_threads(kept: StateStore, threads: int, each: int) -> list[int]:
    """All begin together; what each change has answered."""
    barrier = threading.Barrier(threads, timeout=20)

    def run(_: int) -> list[int]:
        barrier.wait()
        return [kept.update(NAME, count) for _ in range(each)]

    with ThreadPoolExecutor(threads) as executor:
        return [decision for decisions in executor.map(run, range(threads)) for decision in decisions]


@contextmanager
def switching_often() -> Iterator[None]:
    """Threads take turns after a few instructions."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


class TestInThisProcess:
    def test_of_changes_from_many_threads_none_is_lost(self) -> None:
        kept = LocalStore()
        with switching_often():
            decisions = count_from_threads(kept, 8, 500)
        assert sorted(decisions) == list(range(1, 4_001))
        assert kept.update(NAME, look) == ThrottleState(trips=4_000)

    def test_each_name_has_its_own_state_and_begins_empty(self) -> None:
        kept = LocalStore()
        kept.update(NAME, count)
        assert kept.update("another", look) == ThrottleState()

    def test_one_that_could_not_decide_changes_nothing_and_holds_up_nobody(self) -> None:
        kept = LocalStore()
        kept.update(NAME, count)
        with pytest.raises(ZeroDivisionError):
            kept.update(NAME, lambda state, _: (state, 1 / 0))
        assert kept.update(NAME, count) == 2

    def test_it_goes_by_the_clock_that_it_was_given(self) -> None:
        assert LocalStore(lambda: 17.0).update(NAME, read_clock) == 17.0


@pytest.fixture
def prefix() -> str:
    return f"test-{uuid4().hex}:throttle:"


@pytest.fixture
def client(redis_server: Redis) -> Iterator[Any]:
    with make_client(redis_server.url, response_timeout=20) as client:
        yield client


@pytest.fixture
def kept(client: Any, prefix: str) -> RedisStore:
    return RedisStore(client, prefix)


COUNTING = """
import sys
from dataclasses import replace
from outbox.throttle.redis_store import RedisStore
from outbox.storage.redis_client import make_client

kept = RedisStore(make_client(sys.argv[1]), sys.argv[2])
for _ in range(100):
    print(kept.update("the destination", lambda state, _: (replace(state, trips=state.trips + 1), state.trips + 1)))
"""


class TestInRedis:
    def test_of_changes_from_many_threads_none_is_lost(self, kept: RedisStore) -> None:
        decisions = count_from_threads(kept, 8, 25)
        assert sorted(decisions) == list(range(1, 201))
        assert kept.update(NAME, look).trips == 200

    def test_threads_of_a_process_do_not_overtake_each_other(
        self, kept: RedisStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """However many they are: whoever was overtaken too often would do without what the others know."""
        kept.update(NAME, look)
        monkeypatch.setattr(redis_store, "CONFLICT_SECONDS", 0)  # one try
        with switching_often():
            decisions = count_from_threads(kept, 8, 25)
        assert sorted(decisions) == list(range(1, 201))

    def test_of_changes_from_many_processes_none_is_lost(
        self, kept: RedisStore, redis_server: Redis, prefix: str
    ) -> None:
        with ThreadPoolExecutor(3) as executor:
            said = list(executor.map(lambda _: run_python(COUNTING, redis_server.url, prefix), range(3)))
        assert sorted(int(line) for text in said for line in text.split()) == list(range(1, 301))
        assert kept.update(NAME, look).trips == 300

    def test_what_one_has_written_the_other_sees_although_it_remembers_something_else(
        self, kept: RedisStore, client: Any, prefix: str
    ) -> None:
        other = RedisStore(client, prefix)
        for number in range(1, 10):
            assert (kept.update(NAME, count), other.update(NAME, look).trips) == (number, number)

    def test_whoever_was_overtaken_decides_again_by_what_is_there_now(
        self, kept: RedisStore, client: Any, prefix: str
    ) -> None:
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

    def test_whoever_is_overtaken_all_the_time_gives_up(
        self, kept: RedisStore, client: Any, prefix: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(redis_store, "CONFLICT_SECONDS", 0.05)
        other = RedisStore(client, prefix)

        def overtaken(state: ThrottleState, now: float) -> tuple[ThrottleState, int]:
            other.update(NAME, count)
            return count(state, now)

        with pytest.raises(TimeoutError, match="changes all the time"):
            kept.update(NAME, overtaken)

    def test_one_round_trip_is_enough_when_nobody_else_has_changed_it(self, kept: RedisStore) -> None:
        kept.update(NAME, count)
        with flights() as sent:
            for _ in range(10):
                kept.update(NAME, count)
                kept.update(NAME, look)
        assert len(sent) == 20

    def test_whoever_comes_new_or_was_overtaken_takes_two(self, kept: RedisStore, client: Any, prefix: str) -> None:
        kept.update(NAME, count)
        other = RedisStore(client, prefix)
        with flights() as sent:
            other.update(NAME, count)
        assert len(sent) == 2
        with flights() as sent:
            kept.update(NAME, count)
        assert len(sent) == 2

    def test_the_time_is_the_servers(self, kept: RedisStore, client: Any) -> None:
        for _ in range(2):
            seconds, micros = client.time()
            assert abs(kept.update(NAME, read_clock) - (seconds + micros / 1e6)) < 5

    def test_it_goes_on_from_one_reading_to_the_next(self, kept: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
        first = kept.update(NAME, read_clock)
        real = time.monotonic
        monkeypatch.setattr(time, "monotonic", lambda: real() + 100)
        assert 100 <= kept.update(NAME, read_clock) - first < 105
        # And by then it has been read again.
        assert 0 <= kept.update(NAME, read_clock) - first < 5

    def test_looking_writes_nothing_and_what_is_written_does_not_stay_for_ever(
        self, kept: RedisStore, client: Any, prefix: str
    ) -> None:
        kept.update(NAME, look)
        assert not client.exists(prefix + NAME)
        kept.update(NAME, count)
        assert 0 < client.pttl(prefix + NAME) <= KEPT_MILLISECONDS

    def test_what_was_deleted_begins_empty(self, kept: RedisStore, client: Any, prefix: str) -> None:
        kept.update(NAME, count)
        client.delete(prefix + NAME)
        assert kept.update(NAME, count) == 1

    def test_a_server_that_has_forgotten_the_script_is_told_it_again(self, kept: RedisStore, client: Any) -> None:
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
    def test_what_can_not_be_read_is_replaced(self, kept: RedisStore, client: Any, prefix: str, garbage: bytes) -> None:
        client.set(prefix + NAME, garbage)
        assert kept.update(NAME, take_place("me")).events == 1
        assert kept.update(NAME, take_place("you")).limit_reached
        assert json.loads(client.get(prefix + NAME))["places"].keys() == {"me"}


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


class Workers:
    """Two processes' stores, that fall back, on a Redis that the test may break; and what was logged."""

    def __init__(self, server: RedisServer, prefix: str, log: pytest.LogCaptureFixture) -> None:
        log.set_level(logging.INFO, logger="outbox")
        self.server = server
        self._log = log
        self.clients = [make_client(server.url, response_timeout=RESPONSE_TIMEOUT) for _ in range(2)]
        self.a, self.b = (FallbackStore(RedisStore(client, prefix)) for client in self.clients)

    def said(self, what: str) -> int:
        return sum(what in message for message in self._log.messages)

    def pause_redis(self) -> None:
        """And have both find out."""
        self.server.pause()
        for each in (self.a, self.b):
            each.update(NAME, look)


@pytest.fixture
def workers(own_redis: RedisServer, prefix: str, caplog: pytest.LogCaptureFixture) -> Iterator[Workers]:
    workers = Workers(own_redis, prefix, caplog)
    yield workers
    for client in workers.clients:
        client.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis is asked again at once."""
    monkeypatch.setattr(fallback_store, "PAUSE_SECONDS", 0.0)


class TestWithoutRedis:
    @pytest.mark.parametrize("break_it", [RedisServer.kill, RedisServer.stop, RedisServer.pause])
    def test_each_process_decides_by_itself_and_says_so_once(
        self, workers: Workers, break_it: Callable[[RedisServer], None]
    ) -> None:
        assert (workers.a.update(NAME, count), workers.b.update(NAME, count)) == (1, 2)
        break_it(workers.server)
        # What it had remembered was about all of them; its own begins empty.
        assert [workers.a.update(NAME, count) for _ in range(3)] == [1, 2, 3]
        assert workers.said(OWN) == 1
        assert [workers.b.update(NAME, count) for _ in range(2)] == [1, 2]
        assert (workers.said(OWN), workers.said(SHARED)) == (2, 0)

    @pytest.mark.parametrize("break_it", [RedisServer.stop, RedisServer.pause])
    def test_nobody_asks_it_again_for_a_while(
        self, workers: Workers, break_it: Callable[[RedisServer], None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        workers.a.update(NAME, count)
        break_it(workers.server)
        workers.a.update(NAME, count)
        now = time.monotonic()
        for later, asked in ((4.9, False), (5.1, True)):
            monkeypatch.setattr(time, "monotonic", lambda later=later: now + later)
            with flights() as sent, connecting() as connects:
                workers.a.update(NAME, count)
            assert bool(sent or connects) == asked

    def test_it_is_shared_again_when_it_is_back_and_that_is_said_once(self, workers: Workers, impatient: None) -> None:
        workers.server.stop()
        for _ in range(3):
            workers.a.update(NAME, count)
        assert (workers.said(OWN), workers.said(SHARED)) == (1, 0)
        workers.server.start()
        assert [workers.a.update(NAME, count), workers.b.update(NAME, count)] == [1, 2]
        assert (workers.said(OWN), workers.said(SHARED)) == (1, 1)
        workers.server.stop()
        workers.a.update(NAME, count)
        assert workers.said(OWN) == 2

    def test_one_that_hangs_holds_up_a_caller_for_a_moment_only(self, workers: Workers) -> None:
        workers.a.update(NAME, count)
        workers.server.pause()
        before = time.monotonic()
        for _ in range(100):
            workers.a.update(NAME, count)
        assert time.monotonic() - before < 4 * RESPONSE_TIMEOUT

    def test_one_that_is_full_is_as_good_as_none(self, workers: Workers) -> None:
        with redis.Redis.from_url(workers.server.url) as client:
            client.config_set("maxmemory", "1")
        assert [workers.a.update(NAME, count) for _ in range(2)] == [1, 2]
        assert workers.said(OWN) == 1

    def test_what_can_not_be_read_does_no_harm_either(self, workers: Workers, prefix: str) -> None:
        workers.clients[0].set(prefix + NAME, "nonsense")
        assert workers.a.update(NAME, take_place("me")).events == 1

    def test_who_is_not_to_decide_is_not_taken_for_a_broken_redis(self, workers: Workers) -> None:
        with pytest.raises(ZeroDivisionError):
            workers.a.update(NAME, lambda state, _: (state, 1 / 0))


class TestPlacesAcrossTheSwitch:
    """Of a destination that has one place."""

    @pytest.fixture
    def throttles(self, workers: Workers) -> list[DestinationThrottle]:
        target = Handler(lambda _: None, ["*"], NAME, concurrency=1)
        return [DestinationThrottle(target, kept, max_batches=2, hold_seconds=330.0) for kept in (workers.a, workers.b)]

    def test_one_taken_before_is_known_afterwards(
        self, workers: Workers, throttles: list[DestinationThrottle], impatient: None
    ) -> None:
        here, there = throttles
        place = here.admit(1, mode=DeliveryMode.DRAIN)
        workers.pause_redis()
        workers.server.resume()
        assert there.admit(1, mode=DeliveryMode.DRAIN).decision.limit_reached
        place.finish(1, 0.1)
        assert there.admit(1, mode=DeliveryMode.DRAIN).events == 1

    def test_one_left_while_redis_was_away_is_free_when_it_is_back(
        self, workers: Workers, throttles: list[DestinationThrottle], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        here, there = throttles
        place = here.admit(1, mode=DeliveryMode.DRAIN)
        workers.pause_redis()
        place.finish(1, 0.1)
        workers.server.resume()
        monkeypatch.setattr(fallback_store, "PAUSE_SECONDS", 0.0)
        again = here.admit(1, mode=DeliveryMode.DRAIN)
        assert again.events == 1
        again.finish(1, 0.1)
        assert there.admit(1, mode=DeliveryMode.DRAIN).events == 1

    def test_one_taken_while_redis_was_away_and_left_later_is_free_when_it_is_away_again(
        self, workers: Workers, throttles: list[DestinationThrottle], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        here, _ = throttles
        workers.pause_redis()
        place = here.admit(1, mode=DeliveryMode.DRAIN)
        assert place.events == 1
        workers.server.resume()
        monkeypatch.setattr(fallback_store, "PAUSE_SECONDS", 0.0)
        place.finish(1, 0.1)
        workers.pause_redis()
        assert here.admit(1, mode=DeliveryMode.DRAIN).events == 1


class connecting:  # noqa: N801  (as `flights` is used)
    """Every attempt to connect to Redis inside the block."""

    def __enter__(self) -> list[object]:
        self._seen: list[object] = []
        self._patch = pytest.MonkeyPatch()
        connect: Any = redis.connection.Connection.connect

        def note(connection: Any, *arguments: Any, **options: Any) -> Any:
            self._seen.append(connection)
            return connect(connection, *arguments, **options)

        self._patch.setattr(redis.connection.Connection, "connect", note)
        return self._seen

    def __exit__(self, *_: object) -> None:
        self._patch.undo()
