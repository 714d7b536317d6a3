"""Fail, delete and replay events: each changes only events that are still in its state, and writes the audit log."""

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

import outbox
from outbox.admin import queries
from outbox.core import Outbox
from outbox.operations.actions import DELETE, REPLAY, RETRY, fail_with
from outbox.operations.filters import Filter
from outbox.storage.models import DELIVERED, FAILED, PENDING, SENDING, OutboxEvent
from outbox.telemetry import audit
from outbox.telemetry.audit import Operator
from tests.operations.changing import apply, change_all, count_all, replay_to
from tests.support.table import (
    LONG_AGO,
    change,
    claimed,
    emit,
    emit_one,
    expire_leases,
    ids,
    impatient,
    let_pass,
    locking,
    on_postgres,
    other_worker,
    statuses,
    stored,
)


@pytest.fixture
def calls() -> list[tuple[str, str]]:
    """Return the calls so far: the name of the handler, and the id of the event."""
    return []


@pytest.fixture
def delivered(box: Outbox, calls: list[tuple[str, str]]) -> OutboxEvent:
    """Return an event that was delivered to two handlers."""
    for name in ("first", "second"):
        outbox.handler("order.*", name=name)(lambda event, name=name: calls.append((name, str(event.id))))
    event = emit_one()
    box.process_pending_events()
    assert stored(event).status == DELIVERED
    calls.clear()
    return event


class TestFailing:
    def test_waiting_events_fail_with_the_reason_and_their_last_error(self, box: Outbox) -> None:
        new, tried = emit(2)
        change(tried, error_message="handler: no", next_attempt_at=LONG_AGO + timedelta(days=100_000))
        assert change_all(box, fail_with("the customer is gone")) == 2
        assert statuses() == Counter({FAILED: 2})
        assert stored(new).error_message == "failed by an operator: the customer is gone"
        assert stored(tried).error_message == "failed by an operator: the customer is gone; handler: no"
        assert stored(new).next_attempt_at is None

    def test_events_that_a_worker_is_delivering_are_not_changed(self, box: Outbox) -> None:
        event = emit_one()
        batch = claimed(box)
        assert change_all(box, fail_with("")) == 0
        assert (stored(event).status, stored(event).lease_id) == (SENDING, batch.lease_id)

    def test_events_with_an_expired_lease_are_changed(self, box: Outbox) -> None:
        event = emit_one()
        claimed(box)
        expire_leases(event)
        assert change_all(box, fail_with("")) == 1
        row = stored(event)
        assert (row.status, row.lease_id, row.lease_until) == (FAILED, None, None)

    def test_ended_events_are_not_changed(self, box: Outbox, delivered: OutboxEvent) -> None:
        assert change_all(box, fail_with("")) == 0
        assert stored(delivered).status == DELIVERED

    def test_a_failed_event_can_be_retried(self, box: Outbox) -> None:
        event = emit_one()
        change_all(box, fail_with("too early"))
        assert change_all(box, RETRY) == 1
        outbox.handler("order.*", name="handler")(lambda event: None)
        box.process_pending_events()
        assert stored(event).status == DELIVERED

    def test_the_reason_is_shortened_and_cleaned(self, box: Outbox) -> None:
        event = emit_one()
        change_all(box, fail_with("a\x00b\ud800" + "c" * 10_000))
        assert len(str(stored(event).error_message)) <= 2_000


class TestDeleting:
    def test_only_ended_events_are_deleted(self, box: Outbox, delivered: OutboxEvent) -> None:
        waiting = emit_one("other")
        failed = emit_one("third")
        change_all(box, fail_with(""), Filter(ids=(failed.id,)))
        assert change_all(box, DELETE) == 2
        assert ids(list(OutboxEvent.select())) == [waiting.id]

    def test_the_idempotency_key_is_free_again(self, box: Outbox, delivered: OutboxEvent) -> None:
        outbox.emit("Order", 1, "order.placed")
        change_all(box, fail_with(""))
        change_all(box, DELETE)
        assert outbox.emit("Order", 1, "order.placed").status == PENDING


class TestReplaying:
    def test_delivers_again_to_all(self, box: Outbox, delivered: OutboxEvent, calls: list[tuple[str, str]]) -> None:
        assert change_all(box, REPLAY) == 1
        row = stored(delivered)
        assert (row.status, row.attempts, row.delivered_at, row.progress) == (PENDING, 0, None, None)
        box.process_pending_events()
        assert sorted(calls) == [("first", str(delivered.id)), ("second", str(delivered.id))]
        assert stored(delivered).status == DELIVERED

    def test_delivers_again_to_one_destination_only(
        self, box: Outbox, delivered: OutboxEvent, calls: list[tuple[str, str]]
    ) -> None:
        change_all(box, replay_to(box, "second"))
        box.process_pending_events()
        assert calls == [("second", str(delivered.id))]
        assert (stored(delivered).status, stored(delivered).progress) == (DELIVERED, None)

    def test_to_one_destination_only_after_failure_and_retry_too(
        self, box: Outbox, calls: list[tuple[str, str]]
    ) -> None:
        answers: Iterator[Exception | None] = iter([None, outbox.Reject("no"), None])

        @outbox.handler("order.*", name="moody")
        def moody(event: outbox.Event) -> None:
            calls.append(("moody", str(event.id)))
            answer = next(answers)
            if answer is not None:
                raise answer

        outbox.handler("order.*", name="other")(lambda event: calls.append(("other", str(event.id))))
        event = emit_one()
        box.process_pending_events()
        calls.clear()
        change_all(box, replay_to(box, "moody"))
        box.process_pending_events()
        assert stored(event).status == FAILED
        change_all(box, RETRY)
        box.process_pending_events()
        assert calls == [("moody", str(event.id))] * 2
        assert stored(event).status == DELIVERED

    def test_to_a_destination_of_another_worker_waits_for_that_worker(
        self, box: Outbox, delivered: OutboxEvent
    ) -> None:
        other_worker(box, elsewhere="order.*")
        assert change_all(box, replay_to(box, "elsewhere")) == 1
        box.process_pending_events()
        assert (stored(delivered).status, stored(delivered).error_message) == (
            PENDING,
            "elsewhere: waits for a worker that has this destination",
        )

    def test_to_one_destination_changes_only_types_that_it_wants(self, box: Outbox, delivered: OutboxEvent) -> None:
        other_worker(box, elsewhere="order.cancelled")
        assert count_all(box, replay_to(box, "elsewhere"), Filter()) == 0
        assert change_all(box, replay_to(box, "elsewhere")) == 0
        assert stored(delivered).status == DELIVERED

    def test_to_an_unknown_destination_raises_an_error_that_lists_the_known_ones(
        self, box: Outbox, delivered: OutboxEvent
    ) -> None:
        other_worker(box, elsewhere="order.*")
        with pytest.raises(outbox.RegistrationError, match=r"no destination called 'typo'.*elsewhere, first, second"):
            replay_to(box, "typo")
        assert stored(delivered).status == DELIVERED

    def test_to_one_destination_adds_it_to_those_that_have_the_event(self, box: Outbox, delivered: OutboxEvent) -> None:
        outbox.handler("order.*", name="third")(lambda _: None)
        change_all(box, replay_to(box, "third"))
        box.process_pending_events()
        assert queries.delivered_to(box.dialect, stored(delivered)) == ("first", "second", "third")

    def test_failed_and_waiting_events_are_not_changed(self, box: Outbox) -> None:
        waiting = emit_one()
        assert change_all(box, REPLAY) == 0
        assert stored(waiting).status == PENDING


class TestInBatches:
    def test_it_yields_the_number_so_far(self, box: Outbox) -> None:
        emit(7)
        assert count_all(box, fail_with(""), Filter()) == 7
        assert list(apply(box, fail_with(""), Filter(), batch_size=3)) == [3, 6, 7]
        assert statuses() == Counter({FAILED: 7})

    def test_it_stops_at_the_limit(self, box: Outbox) -> None:
        events = emit(7)
        assert change_all(box, fail_with(""), limit=4, batch_size=3) == 4
        assert [stored(event).status for event in events] == [FAILED] * 4 + [PENDING] * 3

    def test_it_can_be_interrupted_and_run_again(self, box: Outbox) -> None:
        emit(7)
        work = apply(box, fail_with(""), Filter(), operator=Operator("ada"), batch_size=3)
        next(work)
        work.close()
        assert statuses() == Counter({FAILED: 3, PENDING: 4})
        assert change_all(box, fail_with(""), operator=Operator("ada"), batch_size=3) == 4
        entries = audit.latest(box.dialect)
        assert [(entry.affected, entry.outcome) for entry in entries] == [(4, "done"), (3, "interrupted")]

    def test_events_that_are_emitted_meanwhile_are_not_changed(self, box: Outbox) -> None:
        emit(4)
        work = apply(box, fail_with(""), Filter(), batch_size=3)
        next(work)
        late = emit_one()
        assert list(work) == [4]
        assert stored(late).status == PENDING

    def test_events_that_change_state_meanwhile_are_not_changed(self, box: Outbox) -> None:
        emit(6)
        work = apply(box, fail_with(""), Filter(), batch_size=3)
        next(work)
        batch = claimed(box)
        assert set(work) == {3}
        assert statuses() == Counter({FAILED: 3, SENDING: len(batch.events)})

    def test_a_rate_is_kept_by_small_batches_and_pauses(self, box: Outbox) -> None:
        slept: list[float] = []
        emit(5)
        assert list(apply(box, fail_with(""), Filter(), per_second=2.5, sleep=slept.append)) == [2, 4, 5]
        assert len(slept) == 2
        assert all(0 < seconds <= 0.8 for seconds in slept)

    @on_postgres
    def test_locked_rows_are_skipped(self, box: Outbox, postgres_url: str) -> None:
        first, second = emit(2)
        with locking(postgres_url, first.id), impatient(box):
            assert change_all(box, fail_with("")) == 1
        assert (stored(first).status, stored(second).status) == (PENDING, FAILED)


class TestTheAudit:
    def test_has_operator_action_filter_and_number(self, box: Outbox) -> None:
        emit(3, tenant_id="acme")
        emit(2)
        change_all(box, fail_with("x"), Filter(tenant_id="acme"), operator=Operator("ada"))
        (entry,) = audit.latest(box.dialect)
        assert (entry.who, entry.action, entry.filters, entry.affected) == ("ada", "fail", {"tenant_id": "acme"}, 3)
        assert entry.at <= entry.ended_at

    def test_is_not_written_without_an_operator(self, box: Outbox) -> None:
        emit(1)
        change_all(box, fail_with(""))
        outbox.retry_failed_events()
        assert audit.latest(box.dialect) == []

    def test_does_not_count_a_batch_that_was_rolled_back(self, box: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
        """The number is written in the same transaction as the change."""
        emit(2)

        def fail_late(*_: Any) -> None:
            raise RuntimeError("in the middle")

        monkeypatch.setattr(box.notifier, "notify_after_commit", fail_late)
        change_all(box, fail_with(""))
        with pytest.raises(RuntimeError, match="in the middle"):
            change_all(box, RETRY, operator=Operator("ada"))
        (entry,) = audit.latest(box.dialect)
        assert (entry.affected, entry.outcome, entry.cause) == (0, "interrupted", "RuntimeError")
        assert statuses() == Counter({FAILED: 2})

    def test_is_deleted_after_its_retention(self, box: Outbox) -> None:
        from outbox.storage.operator_models import Audit

        emit(1)
        change_all(box, fail_with(""), operator=Operator("ada"))
        box.delete_old_records()
        assert len(audit.latest(box.dialect)) == 1
        Audit.update(at=LONG_AGO).execute(box.database)
        box.delete_old_records()
        assert audit.latest(box.dialect) == []


def test_workers_are_notified_once_for_each_batch_that_is_due_again(
    box: Outbox, delivered: OutboxEvent, monkeypatch: pytest.MonkeyPatch
) -> None:
    notified: list[object] = []
    monkeypatch.setattr(box.notifier, "notify_after_commit", notified.append)
    change_all(box, DELETE, Filter(event_type="nothing"))
    change_all(box, REPLAY)
    assert len(notified) == 1
    let_pass(hours=1)
