"""Failing, deleting and replaying by hand: only what is still in the state that was asked about, and written down."""

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

import outbox
from outbox.admin import queries
from outbox.core import Outbox
from outbox.operations import apply_action, audit
from outbox.operations.actions import DELETE, REPLAY, RETRY, fail_with
from outbox.operations.filters import Filter
from outbox.storage.models import DELIVERED, FAILED, PENDING, SENDING, OutboxEvent
from tests.operations.changing import apply, change_all, count_all, replay_to
from tests.table import (
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
    """Who was called, for which event."""
    return []


@pytest.fixture
def delivered(box: Outbox, calls: list[tuple[str, str]]) -> OutboxEvent:
    """An event that two handlers have."""
    for name in ("first", "second"):
        outbox.handler("order.*", name=name)(lambda event, name=name: calls.append((name, str(event.id))))
    event = emit_one()
    box.process_pending_events()
    assert stored(event).status == DELIVERED
    calls.clear()
    return event


class TestFailing:
    def test_gives_up_on_what_waits_and_keeps_the_reason_and_the_last_error(self, box: Outbox) -> None:
        new, tried = emit(2)
        change(tried, error_message="handler: no", next_attempt_at=LONG_AGO + timedelta(days=100_000))
        assert change_all(box, fail_with("the customer is gone")) == 2
        assert statuses() == Counter({FAILED: 2})
        assert stored(new).error_message == "failed by an operator: the customer is gone"
        assert stored(tried).error_message == "failed by an operator: the customer is gone; handler: no"
        assert stored(new).next_attempt_at is None

    def test_leaves_alone_what_a_worker_is_delivering(self, box: Outbox) -> None:
        event = emit_one()
        batch = claimed(box)
        assert change_all(box, fail_with("")) == 0
        assert (stored(event).status, stored(event).lease_id) == (SENDING, batch.lease_id)

    def test_takes_what_a_worker_has_lost(self, box: Outbox) -> None:
        event = emit_one()
        claimed(box)
        expire_leases(event)
        assert change_all(box, fail_with("")) == 1
        row = stored(event)
        assert (row.status, row.lease_id, row.lease_until) == (FAILED, None, None)

    def test_what_has_ended_stays_as_it_is(self, box: Outbox, delivered: OutboxEvent) -> None:
        assert change_all(box, fail_with("")) == 0
        assert stored(delivered).status == DELIVERED

    def test_can_be_taken_back(self, box: Outbox) -> None:
        event = emit_one()
        change_all(box, fail_with("too early"))
        assert change_all(box, RETRY) == 1
        outbox.handler("order.*", name="handler")(lambda event: None)
        box.process_pending_events()
        assert stored(event).status == DELIVERED

    def test_a_long_reason_is_cut_and_a_strange_one_is_cleaned(self, box: Outbox) -> None:
        event = emit_one()
        change_all(box, fail_with("a\x00b\ud800" + "c" * 10_000))
        assert len(str(stored(event).error_message)) <= 2_000


class TestDeleting:
    def test_takes_what_has_ended_and_nothing_else(self, box: Outbox, delivered: OutboxEvent) -> None:
        waiting = emit_one("other")
        failed = emit_one("third")
        change_all(box, fail_with(""), Filter(ids=(failed.id,)))
        assert change_all(box, DELETE) == 2
        assert ids(list(OutboxEvent.select())) == [waiting.id]

    def test_frees_the_key(self, box: Outbox, delivered: OutboxEvent) -> None:
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

    def test_delivers_again_to_one_alone(
        self, box: Outbox, delivered: OutboxEvent, calls: list[tuple[str, str]]
    ) -> None:
        change_all(box, replay_to(box, "second"))
        box.process_pending_events()
        assert calls == [("second", str(delivered.id))]
        assert (stored(delivered).status, stored(delivered).progress) == (DELIVERED, None)

    def test_to_one_alone_also_through_failure_and_retry(self, box: Outbox, calls: list[tuple[str, str]]) -> None:
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

    def test_to_one_that_is_not_here_waits_for_a_worker_that_has_it(self, box: Outbox, delivered: OutboxEvent) -> None:
        other_worker(box, elsewhere="order.*")
        assert change_all(box, replay_to(box, "elsewhere")) == 1
        box.process_pending_events()
        assert (stored(delivered).status, stored(delivered).error_message) == (
            PENDING,
            "elsewhere: waits for a worker that has this destination",
        )

    def test_to_one_leaves_alone_what_it_does_not_want(self, box: Outbox, delivered: OutboxEvent) -> None:
        other_worker(box, elsewhere="order.cancelled")
        assert count_all(box, replay_to(box, "elsewhere"), Filter()) == 0
        assert change_all(box, replay_to(box, "elsewhere")) == 0
        assert stored(delivered).status == DELIVERED

    def test_to_one_that_does_not_exist_is_refused_and_says_which_do(self, box: Outbox, delivered: OutboxEvent) -> None:
        other_worker(box, elsewhere="order.*")
        with pytest.raises(outbox.RegistrationError, match=r"no destination called 'typo'.*elsewhere, first, second"):
            replay_to(box, "typo")
        assert stored(delivered).status == DELIVERED

    def test_to_one_adds_it_to_those_who_had_the_event(self, box: Outbox, delivered: OutboxEvent) -> None:
        outbox.handler("order.*", name="third")(lambda _: None)
        change_all(box, replay_to(box, "third"))
        box.process_pending_events()
        assert queries.delivered_to(box.dialect, stored(delivered)) == ("first", "second", "third")

    def test_leaves_alone_what_failed_or_waits(self, box: Outbox) -> None:
        waiting = emit_one()
        assert change_all(box, REPLAY) == 0
        assert stored(waiting).status == PENDING


class TestInBatches:
    @pytest.fixture(autouse=True)
    def _small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(apply_action, "BATCH", 3)

    def test_it_tells_how_far_it_is(self, box: Outbox) -> None:
        emit(7)
        assert count_all(box, fail_with(""), Filter()) == 7
        assert list(apply(box, fail_with(""), Filter())) == [3, 6, 7]
        assert statuses() == Counter({FAILED: 7})

    def test_it_stops_at_the_limit(self, box: Outbox) -> None:
        events = emit(7)
        assert change_all(box, fail_with(""), limit=4) == 4
        assert [stored(event).status for event in events] == [FAILED] * 4 + [PENDING] * 3

    def test_it_can_be_interrupted_and_run_again(self, box: Outbox) -> None:
        emit(7)
        work = apply(box, fail_with(""), Filter(), who="ada")
        next(work)
        work.close()
        assert statuses() == Counter({FAILED: 3, PENDING: 4})
        assert change_all(box, fail_with(""), who="ada") == 4
        entries = audit.latest(box.dialect)
        assert [(entry.affected, entry.ended_at is None) for entry in entries] == [(4, False), (3, True)]

    def test_what_is_emitted_meanwhile_is_not_meant(self, box: Outbox) -> None:
        emit(4)
        work = apply(box, fail_with(""), Filter())
        next(work)
        late = emit_one()
        assert list(work) == [4]
        assert stored(late).status == PENDING

    def test_what_moves_on_meanwhile_is_left_alone(self, box: Outbox) -> None:
        emit(6)
        work = apply(box, fail_with(""), Filter())
        next(work)
        batch = claimed(box)
        assert set(work) == {3}
        assert statuses() == Counter({FAILED: 3, SENDING: len(batch.events)})

    def test_a_rate_is_kept_by_small_batches_and_pauses(self, box: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
        slept: list[float] = []
        monkeypatch.setattr("outbox.operations.apply_action.time.sleep", slept.append)
        emit(5)
        assert list(apply(box, fail_with(""), Filter(), per_second=2.5)) == [2, 4, 5]
        assert len(slept) == 2
        assert all(0 < seconds <= 0.8 for seconds in slept)

    @on_postgres
    def test_a_row_that_somebody_has_locked_is_passed_over(self, box: Outbox, postgres_url: str) -> None:
        first, second = emit(2)
        with locking(postgres_url, first.id), impatient(box):
            assert change_all(box, fail_with("")) == 1
        assert (stored(first).status, stored(second).status) == (PENDING, FAILED)


class TestTheAudit:
    def test_says_who_did_what_to_which_and_how_many(self, box: Outbox) -> None:
        emit(3, tenant_id="acme")
        emit(2)
        change_all(box, fail_with("x"), Filter(tenant_id="acme"), who="ada")
        (entry,) = audit.latest(box.dialect)
        assert (entry.who, entry.action, entry.filters, entry.affected) == ("ada", "fail", {"tenant_id": "acme"}, 3)
        assert entry.at <= entry.ended_at

    def test_is_not_written_for_what_the_application_does_itself(self, box: Outbox) -> None:
        emit(1)
        change_all(box, fail_with(""))
        outbox.retry_failed_events()
        assert audit.latest(box.dialect) == []

    def test_counts_what_was_undone_as_not_done(self, box: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
        """The number is written in the same transaction as the change."""
        emit(2)

        def fail_late(*_: Any) -> None:
            raise RuntimeError("in the middle")

        monkeypatch.setattr(box.notifier, "notify_after_commit", fail_late)
        change_all(box, fail_with(""))
        with pytest.raises(RuntimeError, match="in the middle"):
            change_all(box, RETRY, who="ada")
        (entry,) = audit.latest(box.dialect)
        assert (entry.affected, entry.ended_at, statuses()) == (0, None, Counter({FAILED: 2}))

    def test_is_forgotten_after_a_while(self, box: Outbox) -> None:
        from outbox.storage.operator_models import Audit

        emit(1)
        change_all(box, fail_with(""), who="ada")
        box.delete_old_records()
        assert len(audit.latest(box.dialect)) == 1
        Audit.update(at=LONG_AGO).execute(box.database)
        box.delete_old_records()
        assert audit.latest(box.dialect) == []


def test_the_workers_are_woken_once_for_each_batch_that_is_due_again(
    box: Outbox, delivered: OutboxEvent, monkeypatch: pytest.MonkeyPatch
) -> None:
    rung: list[object] = []
    monkeypatch.setattr(box.notifier, "notify_after_commit", rung.append)
    change_all(box, DELETE, Filter(event_type="nothing"))
    change_all(box, REPLAY)
    assert len(rung) == 1
    let_pass(hours=1)
