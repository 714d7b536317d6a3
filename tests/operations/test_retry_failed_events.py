"""Retry failed events."""

from threading import Event as Gate
from typing import Any
from uuid import UUID

import pytest

import outbox
from outbox import current_outbox
from outbox.core import Outbox
from outbox.operations.actions import RETRY
from outbox.storage.models import DELIVERED, FAILED, PENDING, SENDING, OutboxEvent
from tests.operations.changing import change_all
from tests.support.notifications import replace_wake
from tests.support.table import (
    claimed,
    emit,
    emit_one,
    ids,
    impatient,
    let_pass,
    locking,
    on_postgres,
    passes,
    statuses,
    stored,
)


def refuse(_: outbox.Event) -> None:
    raise outbox.Reject("no")


@pytest.fixture
def broken(box: Outbox) -> Outbox:
    """Return an Outbox whose only handler fails every event."""
    outbox.handler("*", name="handler")(refuse)
    return box


def repair_handler() -> list[str]:
    """Replace the handler by one that accepts every event; return the list of the events that it is called with."""
    called: list[str] = []
    current_outbox.registry.clear()
    outbox.handler("*", name="handler")(lambda event: called.append(event.aggregate_id))
    return called


def failed(box: Outbox, count: int = 1, event_type: str = "order.placed", **fields: Any) -> list[OutboxEvent]:
    events = emit(count, event_type, **fields)
    box.process_pending_events(count)
    return events


def test_failed_events_are_due_at_once_with_their_attempts_from_zero(broken: Outbox) -> None:
    (event,) = failed(broken)
    assert outbox.retry_failed_events() == 1
    row = stored(event)
    assert (row.status, row.attempts, row.lease_id) == (PENDING, 0, None)
    assert row.progress == {"handler": {"state": "waiting"}}
    assert row.next_attempt_at == row.updated_at
    assert repair_handler() == []
    assert broken.process_pending_events() == {"processed": 1, "remaining": 0}
    row = stored(event)
    assert (row.status, row.attempts, row.error_message) == (DELIVERED, 1, None)


def test_a_retried_event_has_all_its_attempts_again(box: Outbox) -> None:
    attempts: list[int] = []

    @outbox.handler("*", name="handler")
    def handle(event: outbox.Event) -> None:
        attempts.append(event.attempt)
        raise ValueError("no")

    event = emit_one(max_attempts=2)
    for _ in range(2):
        for _ in range(2):
            box.process_pending_events()
            let_pass(hours=2)
        assert stored(event).status == FAILED
        box.retry_failed_events()
    assert attempts == [1, 2, 1, 2]


def test_destinations_that_have_an_event_do_not_get_it_again(broken: Outbox) -> None:
    called: list[str] = []
    outbox.handler("*", name="lucky")(lambda _: called.append("lucky"))
    (event,) = failed(broken)
    broken.retry_failed_events()
    assert {name: entry["state"] for name, entry in stored(event).progress.items()} == {
        "lucky": DELIVERED,
        "handler": "waiting",
    }
    mended = repair_handler()
    outbox.handler("*", name="lucky")(lambda _: called.append("lucky"))
    broken.process_pending_events()
    assert (called, mended, stored(event).status) == (["lucky"], ["0"], DELIVERED)


def test_a_worker_without_the_failed_destination_does_not_mark_the_event_delivered(broken: Outbox) -> None:
    (event,) = failed(broken)
    broken.retry_failed_events()
    broken.registry.clear()
    outbox.handler("*", name="other")(lambda _: None)
    broken.process_pending_events()
    assert stored(event).status == PENDING
    assert "'handler' is not registered in this worker" in str(stored(event).error_message)


def test_only_failed_events_are_changed(box: Outbox) -> None:
    outbox.handler("bad", name="bad")(refuse)
    outbox.handler("good", name="good")(lambda _: None)
    for event_type in ("bad", "good"):
        emit(1, event_type)
    box.process_pending_events()
    leased, waiting = emit(2)
    claimed(box, 1)
    before = [stored(event).updated_at for event in (leased, waiting)]
    assert statuses() == {FAILED: 1, DELIVERED: 1, SENDING: 1, PENDING: 1}
    assert box.retry_failed_events() == 1
    assert statuses() == {DELIVERED: 1, SENDING: 1, PENDING: 2}
    assert [stored(event).updated_at for event in (leased, waiting)] == before


class TestFilters:
    @pytest.mark.parametrize(
        ("wanted", "retried"),
        [
            ({}, 4),
            ({"event_type": "user.created"}, 1),
            ({"event_type": "user.*"}, 0),
            ({"aggregate_type": "Order"}, 3),
            ({"aggregate_id": "1"}, 1),
            ({"tenant_id": "t-1"}, 1),
            ({"aggregate_type": "Order", "aggregate_id": "1", "tenant_id": "t-1"}, 0),
            ({"limit": 3}, 3),
            ({"limit": 0}, 0),
            ({"ids": []}, 0),
        ],
    )
    def test_only_matching_events_are_retried(self, broken: Outbox, wanted: dict[str, Any], retried: int) -> None:
        failed(broken, 2)
        failed(broken, 1, tenant_id="t-1")
        failed(broken, 1, "user.created", aggregate_type="User")
        assert outbox.retry_failed_events(**wanted) == retried
        assert statuses()[FAILED] == 4 - retried

    @pytest.mark.parametrize("kind", [str, UUID])
    def test_events_are_selected_by_id(self, broken: Outbox, kind: Any) -> None:
        first, second, third = failed(broken, 3)
        assert outbox.retry_failed_events(ids=[kind(str(id)) for id in ids([first, third])]) == 2
        assert [stored(event).status for event in (first, second, third)] == [PENDING, FAILED, PENDING]


class TestMany:
    @pytest.mark.parametrize(("limit", "retried"), [(None, 7), (5, 5), (6, 6)])
    def test_events_are_retried_in_batches(self, broken: Outbox, limit: int | None, retried: int) -> None:
        failed(broken, 7)
        assert change_all(broken, RETRY, limit=limit, batch_size=3) == retried
        assert statuses()[PENDING] == retried

    def test_a_worker_is_notified(self, broken: Outbox) -> None:
        failed(broken)
        notified = Gate()
        replace_wake(broken, notified.set)
        broken.retry_failed_events()
        passes(notified)

    def test_inside_a_transaction_the_retry_commits_with_it(self, broken: Outbox) -> None:
        failed(broken, 2)
        with broken.database.atomic() as transaction:
            assert broken.retry_failed_events() == 2
            transaction.rollback()
        assert statuses() == {FAILED: 2}


@on_postgres
def test_locked_rows_are_not_retried(broken: Outbox, postgres_url: str) -> None:
    taken, free = failed(broken, 2)
    with locking(postgres_url, taken.id), impatient(broken):
        assert broken.retry_failed_events() == 1
    assert (stored(taken).status, stored(free).status) == (FAILED, PENDING)
