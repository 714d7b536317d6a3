"""Bulk actions: counted exactly, stopped from elsewhere, and continued where they ended."""

from datetime import timedelta
from typing import Any

import pytest

import outbox
from outbox.core import Outbox
from outbox.destinations.outcome import Retry
from outbox.errors import RegistrationError
from outbox.operations import bulk_actions
from outbox.operations.actions import DELETE, RETRY, fail_with, retry_now
from outbox.operations.bulk_actions import BulkAction, bulk_action_of
from outbox.operations.filters import Filter
from outbox.storage.models import DELIVERED, FAILED, PENDING, OutboxEvent
from outbox.telemetry import audit
from outbox.telemetry.audit import Interrupted, Operator
from tests.operations.changing import apply, change_all, count_all
from tests.support.controls import ALICE, pause
from tests.support.ordering import Receiver, crm
from tests.support.table import change, emit, emit_one, statuses, stored

__all__ = ["crm"]


def latest_bulk(box: Outbox) -> BulkAction:
    with box.dialect.connection():
        now = box.dialect.now()
    return next(bulk for entry in audit.latest(box.dialect) if (bulk := bulk_action_of(entry, now)) is not None)


def interrupted(box: Outbox, batches: int, which: Filter, **options: Any) -> BulkAction:
    """A bulk action that an operator has stopped after so many batches of ten."""
    work = apply(box, fail_with("no"), which, operator=ALICE, batch_size=10, **options)
    for _ in range(batches):
        next(work)
    bulk_actions.stop(box.dialect, latest_bulk(box).entry.id, operator=ALICE)
    next(work)
    with pytest.raises(Interrupted):
        next(work)
    return latest_bulk(box)


class TestABulkAction:
    def test_knows_exactly_how_many_match_and_how_far_it_is(self, box: Outbox) -> None:
        emit(25)
        emit(5, "note.taken")
        work = apply(box, fail_with("no"), Filter(event_type="order.placed"), operator=ALICE, batch_size=10)
        next(work)
        bulk = latest_bulk(box)
        assert (bulk.state, bulk.changed, bulk.total, bulk.can_resume) == ("running", 10, 25, False)
        assert list(work) == [20, 25]
        bulk = latest_bulk(box)
        assert (bulk.state, bulk.changed, bulk.total, bulk.can_resume) == ("done", 25, 25, False)

    def test_stops_after_its_batch_when_an_operator_says_so(self, box: Outbox) -> None:
        emit(30)
        bulk = interrupted(box, 1, Filter(status=PENDING))
        # The batch in which it is told is finished.
        assert (bulk.state, bulk.changed, bulk.can_resume) == ("interrupted", 20, True)
        assert bulk.entry.cause == "alice, who stopped it"
        assert statuses() == {FAILED: 20, PENDING: 10}
        with pytest.raises(RegistrationError, match="not running"):
            bulk_actions.stop(box.dialect, bulk.entry.id, operator=ALICE)

    def test_has_an_entry_of_who_wanted_it_to_stop_even_if_it_ends_by_itself(
        self, box: Outbox, caplog: pytest.LogCaptureFixture
    ) -> None:
        emit(20)
        work = apply(box, fail_with("no"), Filter(status=PENDING), operator=ALICE, batch_size=30)
        next(work)
        bulk = latest_bulk(box)
        with caplog.at_level("INFO", "outbox.audit"):
            bulk_actions.stop(box.dialect, bulk.entry.id, operator=Operator("bob"))
        assert list(work) == []
        stop, ended = audit.latest(box.dialect)
        assert (stop.who, stop.action, stop.filters, stop.outcome) == (
            "bob",
            "stop",
            {"stopped": str(ended.id)},
            "done",
        )
        assert (ended.outcome, ended.cause) == ("done", None)
        assert str(ended.id) in caplog.text

    def test_is_continued_where_it_has_ended_with_all_its_parameters(self, box: Outbox) -> None:
        emit(40)
        bulk = interrupted(box, 1, Filter(event_type="order.placed"), limit=35, per_second=10_000.0)
        later = emit_one()
        first = OutboxEvent.select().order_by(OutboxEvent.id).first()
        change_all(box, RETRY, Filter(ids=(first.id,)))
        notify = box.notifier.notify_after_commit
        changed = list(bulk_actions.resume(box.dialect, notify, box.registry, bulk.entry.id, operator=ALICE))
        assert changed[-1] == 15
        continued = latest_bulk(box)
        assert (continued.state, continued.total) == ("done", 15)
        assert continued.entry.filters == {"event_type": "order.placed"}
        assert continued.entry.parameters == {
            "reason": "no",
            "limit": 15,
            "per_second": 10_000.0,
            "continues": str(bulk.entry.id),
        }
        # An event that it had changed before, and one that was emitted after it had begun, are not changed.
        assert (stored(first).status, stored(later).status) == (PENDING, PENDING)

    def test_that_has_ended_or_runs_is_not_continued(self, box: Outbox) -> None:
        emit(30)
        notify = box.notifier.notify_after_commit
        work = apply(box, fail_with("no"), Filter(status=PENDING), operator=ALICE, batch_size=10)
        next(work)
        id = latest_bulk(box).entry.id
        with pytest.raises(RegistrationError, match="is running"):
            bulk_actions.resume(box.dialect, notify, box.registry, id, operator=ALICE)
        list(work)
        with pytest.raises(RegistrationError, match="nothing left"):
            bulk_actions.resume(box.dialect, notify, box.registry, id, operator=ALICE)
        with pytest.raises(RegistrationError, match="no action"):
            bulk_actions.resume(box.dialect, notify, box.registry, emit_one().id, operator=ALICE)

    def test_whose_process_was_killed_can_be_continued_after_two_minutes(self, box: Outbox) -> None:
        emit(30)
        work = apply(box, RETRY, operator=ALICE, batch_size=10)
        change(status=FAILED, next_attempt_at=None)
        next(work)
        entry = latest_bulk(box).entry
        assert bulk_action_of(entry, entry.seen_at + timedelta(minutes=1)).state == "running"  # type: ignore[union-attr]
        lost = bulk_action_of(entry, entry.seen_at + timedelta(minutes=3))
        assert lost is not None
        assert (lost.state, lost.can_resume) == ("no report", True)
        work.close()

    def test_of_the_application_is_neither_counted_nor_audited(self, box: Outbox) -> None:
        emit(3)
        change_all(box, fail_with("no"))
        assert audit.latest(box.dialect) == []


class TestRetryingNow:
    def test_what_waits_for_a_retry_is_tried_at_once_and_its_attempts_count_on(
        self, box: Outbox, crm: Receiver
    ) -> None:
        crm.outcomes["0"] = Retry("not now")
        (waiting,) = emit(1)
        box.process_pending_events()
        new = emit_one("note.taken", deliver_after=timedelta(hours=1))
        action = retry_now(box.dialect)
        assert count_all(box, action) == 1
        assert change_all(box, action) == 1
        assert count_all(box, retry_now(box.dialect)) == 0
        assert stored(new).next_attempt_at == new.next_attempt_at
        box.process_pending_events()
        row = stored(waiting)
        assert (row.status, row.attempts) == (PENDING, 2)
        crm.outcomes.clear()
        change_all(box, retry_now(box.dialect))
        box.process_pending_events()
        assert stored(waiting).status == DELIVERED

    def test_what_waits_for_the_end_of_a_pause_or_is_being_delivered_is_not_changed(
        self, box: Outbox, crm: Receiver
    ) -> None:
        pause("crm")
        paused = emit_one()
        box.process_pending_events()
        due_at = stored(paused).next_attempt_at
        assert change_all(box, retry_now(box.dialect)) == 0
        assert stored(paused).next_attempt_at == due_at

    def test_what_a_worker_has_is_not_tried_now(self, box: Outbox, crm: Receiver) -> None:
        crm.outcomes["0"] = Retry("not now")
        event = emit_one()
        box.process_pending_events()
        action = retry_now(box.dialect)
        row = stored(event)
        change(event, lease_id=event.id)  # a worker has claimed it since it was selected
        assert action.run(box.dialect, [row]) == []

    def test_what_a_destination_missed_since_a_time_is_recovered(self, box: Outbox, crm: Receiver) -> None:
        crm.outcomes["0"] = Retry("down", timedelta(hours=5))
        early, late = emit_one(), emit_one()
        box.process_pending_events()
        since = late.created_at
        change(early, created_at=since - timedelta(minutes=5))
        assert change_all(box, retry_now(box.dialect), Filter(destination="crm", since=since)) == 1


def test_a_filter_is_read_as_it_was_written(box: Outbox) -> None:
    event = emit_one()
    filter = Filter(ids=(event.id,), since=event.created_at, error="x", destination="crm")
    assert Filter.from_json(filter.to_json()) == filter
    with pytest.raises(outbox.SettingsError):
        Filter.from_json({"colour": "blue"})


def test_deleting_is_a_bulk_action_too(box: Outbox) -> None:
    emit(3)
    change_all(box, fail_with("no"))
    assert change_all(box, DELETE, operator=ALICE) == 3
    assert latest_bulk(box).total == 3
