"""A batch is about a second's work."""

from threading import Event as Gate

import pytest
from hypothesis import given
from hypothesis import strategies as st

import outbox
from outbox.delivery.batch_size import AdaptiveBatchSize
from outbox.storage.models import DELIVERED, SENDING
from tests.conftest import Configure
from tests.support.table import becomes_true, emit, passes, statuses

SECONDS = st.just(0.0) | st.floats(1e-9, 1e6)  # as clocks have them


def test_it_begins_with_the_largest_size() -> None:
    assert AdaptiveBatchSize(100).current == 100


@pytest.mark.parametrize(("seconds", "expected"), [(0, 100), (0.5, 100), (1, 100), (2, 50), (10, 10), (1_000, 1)])
def test_a_batch_is_about_a_seconds_work(seconds: float, expected: int) -> None:
    size = AdaptiveBatchSize(100)
    size.batch_took(100, seconds)
    assert size.current == expected


def test_it_grows_again_by_doubling() -> None:
    size = AdaptiveBatchSize(100)
    size.batch_took(100, 50)
    sizes = [size.current]
    for _ in range(7):
        size.batch_took(size.current, 0.001)
        sizes.append(size.current)
    assert sizes == [2, 4, 8, 16, 32, 64, 100, 100]


@given(st.integers(1, 10_000), st.lists(st.tuples(st.integers(0, 10_000), SECONDS)))
def test_it_stays_between_one_and_the_largest_size(most: int, batches: list[tuple[int, float]]) -> None:
    size = AdaptiveBatchSize(most)
    for events, seconds in batches:
        size.batch_took(events, seconds)
        assert 1 <= size.current <= most


@pytest.mark.usefixtures("usual_slices")
def test_a_slow_destination_does_not_shrink_it(configure: Configure) -> None:
    box, gate = configure(batch_size=10), Gate()
    outbox.handler("order.slow", name="slow")(lambda _: passes(gate))
    outbox.handler("order.placed", name="quick")(lambda _: None)
    emit(1, "order.slow")
    emit(9)
    box.drain()
    assert statuses() == {SENDING: 1, DELIVERED: 9}
    assert box.delivery.batch_size.current == 10
    gate.set()
    becomes_true(lambda: statuses() == {DELIVERED: 10})
