"""The inbox counts how often a message was delivered, where its broker says only that it was delivered before."""

from dataclasses import replace

import pytest

from outbox.consumer.delivery_count import MOST_NAME, DeliveryCount
from outbox.consumer.entry import Entry
from outbox.core import Outbox
from outbox.errors import SchemaError
from outbox.storage.models import InboxMessage
from tests.support.received_event import event

QUEUE = "orders"
FIRST = Entry("1-1", {}, counted_for=QUEUE)
AGAIN = replace(FIRST, is_redelivered=True)


def begun(entry: Entry) -> tuple[int, bool]:
    assert not entry.is_redelivered
    return entry.deliveries, entry.is_exhausted


def rows() -> list[str]:
    return sorted(row.handler_name for row in InboxMessage.select())


def test_a_first_delivery_has_no_row(box: Outbox) -> None:
    assert begun(DeliveryCount(box.inbox, 3).begin(FIRST, event())) == (1, False)
    assert rows() == []


def test_each_further_delivery_has_a_row_until_there_are_enough(box: Outbox) -> None:
    count, message = DeliveryCount(box.inbox, 3), event()
    assert [begun(count.begin(AGAIN, message)) for _ in range(4)] == [(2, False), (3, False), (3, True), (3, True)]
    assert rows() == [f"(delivery {number} from {QUEUE})" for number in (2, 3)]


def test_one_that_its_consumer_tries_again_has_the_number_that_it_knows(box: Outbox) -> None:
    count, message = DeliveryCount(box.inbox, 3), event()
    second = replace(FIRST, deliveries=2)
    assert begun(count.begin(second, message)) == begun(count.begin(second, message)) == (2, False)
    assert begun(count.begin(AGAIN, message)) == (3, False)
    exhausted = replace(FIRST, deliveries=3, is_exhausted=True)
    assert begun(count.begin(exhausted, message)) == (3, True)


def test_one_that_does_not_count_is_taken_back(box: Outbox) -> None:
    count, message = DeliveryCount(box.inbox, 3), event()
    for _ in range(3):
        second = count.begin(AGAIN, message)
        assert begun(second) == (2, False)
        count.undo(second, message)
    assert rows() == []


def test_if_only_one_is_allowed_the_first_has_a_row(box: Outbox) -> None:
    """So a message that was fetched, and not begun with, is not taken for one that has crashed its consumer."""
    count, message = DeliveryCount(box.inbox, 1), event()
    assert begun(count.begin(AGAIN, message)) == (1, False)
    assert begun(count.begin(AGAIN, message)) == (1, True)


def test_other_queues_and_messages_have_rows_of_their_own(box: Outbox) -> None:
    count, message = DeliveryCount(box.inbox, 5), event()
    count.begin(AGAIN, message)
    with box.inbox.claim(message.id, "(delivery 4 from elsewhere)"), box.inbox.claim(message.id, "notes"):
        pass
    assert begun(count.begin(replace(AGAIN, counted_for="mail"), message)) == (2, False)
    assert begun(count.begin(AGAIN, message)) == (3, False)


def test_a_long_name_of_a_queue_fits_in_the_column(box: Outbox) -> None:
    count, message = DeliveryCount(box.inbox, 5), event()
    long = replace(AGAIN, counted_for="q" * 255)
    assert [begun(count.begin(long, message)) for _ in range(2)] == [(2, False), (3, False)]
    assert rows()[0] == f"(delivery 2 from {'q' * MOST_NAME})"


def test_a_source_that_counts_needs_no_row(box: Outbox) -> None:
    entry = Entry("1-1", {}, deliveries=3)
    assert DeliveryCount(box.inbox, 5).begin(entry, event()) is entry
    DeliveryCount(box.inbox, 5).undo(entry, event())
    assert rows() == []


def test_the_inbox_must_have_its_table(box: Outbox) -> None:
    with box.dialect.connection():
        box.database.execute_sql("DROP TABLE inbox")
    with pytest.raises(SchemaError):
        DeliveryCount(box.inbox, 5).begin(AGAIN, event())
