"""drain: deliver until a batch is not full; a backlog notifies more workers, and no drain goes on for ever."""

import pytest

import outbox
from outbox.core import Outbox
from outbox.delivery import deliver
from outbox.storage.models import DELIVERED, PENDING
from tests.conftest import Configure
from tests.support.notifications import replace_wake
from tests.support.outbox_parts import waiting_for_handlers
from tests.support.table import claimed, emit, expire_leases, statuses


@pytest.fixture
def small(configure: Configure) -> Outbox:
    """An outbox that claims three at a time, and a drain that waits for its handlers."""
    return waiting_for_handlers(configure(batch_size=3))


def listen(box: Outbox, events: int) -> list[str]:
    """Emit events, and return what happens from then on, in order: `notified` and `handled`."""
    emit(events)
    heard: list[str] = []
    replace_wake(box, lambda: heard.append("notified"))

    @outbox.handler("order.*", name="listener")
    def handle(_: outbox.Event) -> None:
        box.notifier.flush()
        heard.append("handled")

    return heard


class TestUntilABatchIsNotFull:
    def test_it_goes_on_after_full_batches(self, small: Outbox) -> None:
        listen(small, 8)
        assert small.drain() == 8
        assert statuses() == {DELIVERED: 8}

    def test_with_nothing_due_it_does_nothing(self, small: Outbox) -> None:
        assert small.drain() == 0

    def test_an_event_from_an_expired_lease_does_not_end_it(self, small: Outbox) -> None:
        listen(small, 4)
        claimed(small)
        expire_leases()
        emit(2)
        assert small.drain() == 6

    def test_events_emitted_meanwhile_are_delivered_too(self, small: Outbox) -> None:
        left = iter(range(2))
        outbox.handler("order.*", name="emitter")(lambda _: emit(3) if next(left, None) is not None else None)
        emit(3)
        assert small.drain() == 9

    def test_a_stopping_process_claims_nothing(self, small: Outbox) -> None:
        listen(small, 1)
        small.stopping.set()
        assert small.drain() == 0
        assert statuses() == {PENDING: 1}


class TestNotifyingOtherWorkers:
    def test_a_full_batch_notifies_another_worker_before_it_is_delivered(self, small: Outbox) -> None:
        heard = listen(small, 3)
        small.drain()
        small.notifier.flush()
        assert heard == ["notified", "handled", "handled", "handled"]

    def test_a_batch_that_is_not_full_notifies_no_worker(self, small: Outbox) -> None:
        heard = listen(small, 2)
        small.drain()
        small.notifier.flush()
        assert heard == ["handled", "handled"]

    def test_process_pending_events_notifies_no_worker(self, small: Outbox) -> None:
        heard = listen(small, 6)
        small.process_pending_events()
        small.notifier.flush()
        assert heard == ["handled"] * 3


class TestTheTimeSlice:
    def test_when_it_is_over_another_worker_is_notified(self, small: Outbox) -> None:
        heard = listen(small, 7)
        assert deliver.drain(small.delivery, seconds=0) == 3
        small.notifier.flush()
        assert heard == ["notified", "handled", "handled", "handled", "notified"]
        assert statuses() == {DELIVERED: 3, PENDING: 4}

    def test_when_it_is_over_after_a_batch_that_is_not_full_no_worker_is_notified(self, small: Outbox) -> None:
        heard = listen(small, 1)
        assert deliver.drain(small.delivery, seconds=0) == 1
        small.notifier.flush()
        assert heard == ["handled"]
