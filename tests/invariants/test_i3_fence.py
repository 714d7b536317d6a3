"""Only the holder of the current lease may settle an event; a late worker's word is a counted no-op."""

from collections.abc import Callable
from typing import Any

import pytest

import outbox
from outbox import current_outbox
from outbox.core import Outbox
from outbox.delivery.batch import Batch
from outbox.delivery.dispatch import dispatch
from outbox.delivery.settle import give_back
from outbox.storage.models import DELIVERED, SENDING, OutboxEvent
from tests.support.table import another, claimed, emit_one, expire_leases, let_pass, stored

Word = Callable[[Outbox, Batch], Any]


def renew(box: Outbox, batch: Batch) -> None:
    box.delivery.leases.renew([batch])


def deliver(box: Outbox, batch: Batch) -> None:
    dispatch(box.delivery, batch)


def refuse(box: Outbox, batch: Batch) -> None:
    """Deliver with a handler that fails in this worker."""
    box.registry.clear()
    outbox.handler("*", name="handler")(lambda _: 1 / 0)
    dispatch(box.delivery, batch)


@pytest.fixture
def event(box: Outbox) -> OutboxEvent:
    outbox.handler("*", name="handler")(lambda _: None)
    return emit_one()


@pytest.mark.parametrize(("word", "counted"), [(deliver, 1), (refuse, 1), (give_back, 1), (renew, 0)])
def test_after_another_worker_took_over_no_outcome_of_the_first_changes_the_row(
    box: Outbox, event: OutboxEvent, word: Word, counted: int
) -> None:
    late = claimed(box)
    expire_leases()
    holder = claimed(another(box))
    before = snapshot(event)
    word(box, late)
    assert snapshot(event) == before
    assert (stored(event).status, stored(event).lease_id) == (SENDING, holder.lease_id)
    assert box.counters["fenced"] == counted


@pytest.mark.parametrize("word", [deliver, refuse, give_back, renew])
def test_after_another_worker_settled_it_no_outcome_of_the_first_changes_the_row(
    box: Outbox, event: OutboxEvent, word: Word
) -> None:
    late = claimed(box)
    expire_leases()
    rival = another(box)
    assert rival.process_pending_events() == {"processed": 1, "remaining": 0}
    assert stored(event).status == DELIVERED
    before = snapshot(event)
    word(box, late)
    assert snapshot(event) == before
    assert rival.counters["fenced"] == 0


def test_the_holder_of_the_lease_settles_whatever_the_late_worker_reported(box: Outbox, event: OutboxEvent) -> None:
    late = claimed(box)
    expire_leases()
    rival = another(box)
    holder = claimed(rival)
    refuse(box, late)
    current_outbox.registry.clear()
    outbox.handler("*", name="handler")(lambda _: None)
    dispatch(rival.delivery, holder)
    row = stored(event)
    assert (row.status, row.attempts, row.error_message) == (DELIVERED, 1, None)


def test_a_worker_that_slept_through_its_lease_begins_nothing(box: Outbox) -> None:
    called: list[outbox.Event] = []
    outbox.handler("*", name="handler")(called.append)
    event = emit_one()
    late = claimed(box)
    let_pass(seconds=31)
    late.valid_until -= 31  # and as much by this host's clock
    dispatch(box.delivery, late)
    give_back(box.delivery, late)
    assert called == []
    assert (stored(event).status, stored(event).attempts) == ("pending", 0)


def snapshot(event: OutboxEvent) -> dict[str, Any]:
    return dict(stored(event).__data__)
