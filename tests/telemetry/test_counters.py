"""Counters: exact when many threads add, and each count is taken once."""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from outbox.telemetry.counters import BOUNDS, BUCKETS, Counters, Series

THREADS = 8
TIMES = 2_000


def in_threads(do: Callable[[int], None]) -> None:
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(do, range(THREADS)))


def test_what_many_threads_add_adds_up() -> None:
    counters = Counters()

    def add(_: int) -> None:
        for _ in range(TIMES):
            counters.add(delivered=1, failed=2)
            counters.add_labelled("outcomes", {(("destination", "a"),): 3})
            counters.observe("send", [0.5], destination="a")

    in_threads(add)
    assert counters.take() == {
        Series("delivered"): THREADS * TIMES,
        Series("failed"): 2 * THREADS * TIMES,
        Series("outcomes", (("destination", "a"),)): 3 * THREADS * TIMES,
        Series("send_bucket", (("destination", "a"), ("le", "0.5"))): THREADS * TIMES,
        Series("send_sum", (("destination", "a"),)): 0.5 * THREADS * TIMES,
    }


def test_every_count_is_taken_exactly_once_while_others_add() -> None:
    counters = Counters()
    taken: Counter[Series] = Counter()

    def add_or_take(number: int) -> None:
        for _ in range(TIMES):
            if number == 0:
                taken.update(counters.take())
            else:
                counters.add(delivered=1)

    in_threads(add_or_take)
    taken.update(counters.take())
    assert taken == {Series("delivered"): (THREADS - 1) * TIMES}
    assert counters.take() == {}


@pytest.mark.parametrize(
    ("seconds", "bucket"),
    [(0.0, "0.005"), (0.005, "0.005"), (0.0051, "0.01"), (1.0, "1"), (1.1, "2.5"), (86400.0, "86400"), (1e9, "+Inf")],
)
def test_a_time_is_counted_in_the_first_bucket_that_it_does_not_exceed(seconds: float, bucket: str) -> None:
    counters = Counters()
    counters.observe("latency", [seconds])
    taken = counters.take()
    assert taken.pop(Series("latency_sum"), 0.0) == seconds
    assert taken == {Series("latency_bucket", (("le", bucket),)): 1}


def test_no_times_are_no_series() -> None:
    counters = Counters()
    counters.observe("latency", [])
    assert counters.take() == {}


def test_buckets_are_the_bounds_and_infinity() -> None:
    assert [float(bucket) for bucket in BUCKETS] == [*BOUNDS, float("inf")]
    assert list(BOUNDS) == sorted(BOUNDS)
