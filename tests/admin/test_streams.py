"""How far the consumers of streams and queues are behind: in the metrics, and where it is gathered from."""

from datetime import timedelta
from typing import Any

from outbox.admin.processes import processes
from outbox.admin.streams import StreamGroup, stream_groups
from outbox.core import Outbox
from outbox.storage.operator_models import Process
from tests.support.metrics import families, value
from tests.support.streams import report_consumer

QUEUE: dict[str, Any] = {"stream": "orders", "kind": "queue", "pending_is_own": True}


def groups(box: Outbox) -> list[StreamGroup]:
    return stream_groups(processes(box.dialect), box.dialect.now())


def test_without_consumers_there_are_no_values(box: Outbox) -> None:
    assert families(box)["outbox_consumer_behind"].samples == []
    assert families(box)["outbox_consumer_pending"].samples == []


def test_what_is_pending_in_a_group_is_known_to_each_of_its_consumers(box: Outbox) -> None:
    report_consumer(box, stream="orders", group="billing", behind=5, pending=9)
    report_consumer(box, stream="orders", group="billing", behind=4, pending=7)
    (group,) = groups(box)
    assert (group.kind, group.behind, group.pending, group.depth, group.consumers) == ("stream", 4, 7, 11, 2)
    assert value(box, "outbox_consumer_behind", stream="orders", group="billing") == 4
    assert value(box, "outbox_consumer_pending", stream="orders", group="billing") == 7


def test_what_is_pending_in_a_queue_is_what_all_its_consumers_have(box: Outbox) -> None:
    report_consumer(box, **QUEUE, behind=5, pending=9)
    report_consumer(box, **QUEUE, behind=4, pending=7)
    (queue,) = groups(box)
    assert (queue.kind, queue.behind, queue.pending, queue.depth, queue.consumers) == ("queue", 4, 16, 20, 2)
    assert value(box, "outbox_consumer_pending", stream="orders", group="outbox") == 16


def test_a_consumer_that_was_killed_has_no_messages_of_a_queue_any_more(box: Outbox) -> None:
    killed = report_consumer(box, **QUEUE, behind=4, pending=9, processed=10)
    report_consumer(box, **QUEUE, behind=13, pending=7, processed=1)
    let_be_silent(box, killed)
    (queue,) = groups(box)
    assert (queue.behind, queue.pending, queue.processed, queue.consumers) == (13, 7, 1, 1)


def test_if_all_were_killed_the_last_report_is_shown_and_is_no_metric(box: Outbox) -> None:
    let_be_silent(box, report_consumer(box, **QUEUE, behind=4, pending=9))
    (queue,) = groups(box)
    assert (queue.behind, queue.pending, queue.consumers) == (4, 0, 0)
    assert families(box)["outbox_consumer_behind"].samples == []


def test_a_report_of_an_older_version_is_that_of_a_stream(box: Outbox) -> None:
    report_consumer(box, stream="orders", behind=4, pending=9)
    (group,) = groups(box)
    assert (group.kind, group.pending) == ("stream", 9)


def let_be_silent(box: Outbox, id: str) -> None:
    earlier = box.dialect.now() - timedelta(hours=3)
    Process.update(seen_at=earlier).where(Process.id == id).execute(box.database)
