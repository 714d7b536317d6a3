"""A batch knows which of its events may begin, and gives each out once."""

import time
from datetime import timedelta

import pytest

from outbox.core import Outbox
from outbox.delivery.batch import Batch, Delivery
from outbox.storage.models import DELIVERED
from outbox.storage.progress import ProgressEntry
from tests.support.table import claimed, emit, ids

GOT_IT = ProgressEntry(state=DELIVERED, attempts=1)


@pytest.fixture
def batch(box: Outbox) -> Batch:
    emit(1)
    return claimed(box)


def delivery_to(batch: Batch, *names: str) -> Delivery:
    return Delivery(batch.events[0], {name: ProgressEntry() for name in names}, awaited=names)


def test_an_event_may_begin_while_the_lease_is_valid(batch: Batch) -> None:
    assert batch.begin(delivery_to(batch, "a"), "a", time.monotonic())


def test_no_event_begins_when_the_lease_has_expired_by_this_hosts_clock(batch: Batch) -> None:
    batch.renewed(batch.started_at, lost=())
    assert not batch.begin(delivery_to(batch, "a"), "a", time.monotonic())


def test_no_event_begins_that_another_worker_has_taken_over(batch: Batch) -> None:
    delivery = delivery_to(batch, "a", "b")
    assert batch.begin(delivery, "a", time.monotonic())
    batch.renewed(batch.valid_until, lost=ids(batch.events))
    assert not batch.begin(delivery, "b", time.monotonic())


def test_no_event_begins_after_the_batch_was_closed(batch: Batch) -> None:
    delivery = delivery_to(batch, "a")
    assert batch.take_unbegun() == batch.events
    assert not batch.begin(delivery, "a", time.monotonic())
    assert (batch.held(), batch.take_unbegun()) == ([], [])


def test_an_event_is_finished_when_every_destination_has_returned_an_outcome(batch: Batch) -> None:
    delivery = delivery_to(batch, "a", "b")
    for name in ("a", "b"):
        assert batch.begin(delivery, name, time.monotonic())
    batch.record(delivery, "a", GOT_IT, time.monotonic())
    assert batch.take_finished() == []
    batch.record(delivery, "b", GOT_IT, time.monotonic())
    assert batch.held() == ids(batch.events)  # until it is settled
    assert batch.take_finished() == [delivery]
    assert (batch.take_finished(), batch.held()) == ([], [])


def test_closing_puts_off_the_destinations_that_have_not_begun(batch: Batch) -> None:
    delivery = delivery_to(batch, "a", "b")
    assert batch.begin(delivery, "a", time.monotonic())
    assert batch.take_unbegun() == []
    assert batch.take_finished() == []  # a is still at it
    assert not batch.begin(delivery, "b", time.monotonic())
    batch.record(delivery, "a", GOT_IT, time.monotonic())
    assert batch.take_finished() == [delivery]
    assert delivery.progress["a"] == GOT_IT
    put_off = delivery.progress["b"]
    assert (put_off.is_open, put_off.attempts) == (True, 0)
    assert put_off.not_before is not None
    assert abs(put_off.not_before - batch.clock.now()) < timedelta(seconds=20)
