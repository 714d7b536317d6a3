"""`seq` follows the inserts, whatever the hosts' clocks say: what order per key goes by."""

from datetime import timedelta

import outbox
from outbox.core import Outbox
from outbox.storage.models import OutboxEvent
from tests.support.table import emit, emit_one


def sequence() -> list[str]:
    return [event.aggregate_id for event in OutboxEvent.select().order_by(OutboxEvent.seq)]


def test_single_events_are_numbered_as_they_are_emitted(box: Outbox) -> None:
    for number in range(20):
        outbox.emit("Order", number, "order.placed")
    assert sequence() == [str(number) for number in range(20)]


def test_events_of_emit_many_are_numbered_in_the_callers_order_though_inserted_by_key(box: Outbox) -> None:
    numbers = [9, 3, 7, 1, 8, 2]
    events = outbox.emit_many([("Order", number, "order.placed") for number in numbers])
    assert sequence() == [str(number) for number in numbers]
    assert [event.seq for event in events] == sorted(event.seq for event in events)


def test_a_number_is_never_used_twice(box: Outbox) -> None:
    last = emit(3)[-1]
    OutboxEvent.delete().execute()
    assert emit_one().seq > last.seq


def test_a_batch_is_delivered_in_order(box: Outbox) -> None:
    got: list[int] = []
    outbox.handler("*", name="taker")(lambda event: got.append(event.seq))
    late = emit_one(deliver_after=timedelta(milliseconds=1))
    events = emit(50)
    OutboxEvent.update(next_attempt_at=late.created_at).execute()
    box.process_pending_events()
    assert got == [late.seq, *(event.seq for event in events)]
