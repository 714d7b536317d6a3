"""Erasing what events hold about someone: nothing of it is left in any table, and nothing else is changed."""

import json
from datetime import timedelta
from typing import Any

import dramatiq
import pytest

import outbox
from outbox import OutboxEvent
from outbox.core import Outbox
from outbox.destinations.outcome import Failed, Retry
from outbox.errors import SettingsError
from outbox.events.event import Event
from outbox.operations import bulk_actions
from outbox.operations.actions import DELETE, FAIL, REPLAY, RETRY, actions_on
from outbox.operations.breakdown import breakdown
from outbox.operations.erase import UnfinishedEvents, _Eraser, erase, is_about, preview
from outbox.operations.filters import Filter
from outbox.storage.attempts import read_attempts
from outbox.storage.models import DELIVERED, FAILED, PENDING
from outbox.telemetry import audit
from outbox.telemetry.audit import Interrupted
from tests.operations.changing import change_all, count_all
from tests.support.controls import ALICE
from tests.support.encryption import NEW, dump, with_keys
from tests.support.ordering import Receiver, crm, run
from tests.support.table import change, claimed, emit, emit_one, expire_leases, statuses, stored

__all__ = ["crm"]

SECRET = "alice@example.com"
ALICE_S = Filter(subject="user:7")


def emit_secrets(count: int = 1, **fields: Any) -> list[OutboxEvent]:
    """Events that are about user:7, and have the secret wherever an application can put one."""
    given = {"payload": {"mail": SECRET}, "headers": {"x-mail": SECRET}, "correlation_id": f"of {SECRET}"}
    return emit(count, **{"subject": "user:7", **given, **fields})


def erase_all(box: Outbox, which: Filter = ALICE_S, **options: Any) -> int:
    given = {"operator": ALICE} | options
    return max(erase(box.dialect, box.notifier.notify_after_commit, which, **given), default=0)


class TestWhatIsErased:
    def test_nothing_of_it_is_left_in_any_table(self, box: Outbox, crm: Receiver) -> None:
        crm.outcomes["0"] = Failed(f"{SECRET} is unknown")
        failed, delivered = emit_secrets(2)
        by_key = emit_secrets(idempotency_key=f"welcome {SECRET}", event_type="user.welcomed")[0]
        run(box)
        assert [stored(each).status for each in (failed, delivered, by_key)] == [FAILED, DELIVERED, FAILED]
        assert len(read_attempts(box.dialect, failed.id)) == 1
        assert SECRET in dump(box)
        assert erase_all(box) == 3
        assert SECRET not in dump(box)
        assert "user:7" not in dump(box)

    def test_the_row_stays_with_what_it_is_known_by(self, box: Outbox, crm: Receiver) -> None:
        crm.outcomes["0"] = Failed("no")
        failed, delivered = before = emit_secrets(2, tenant_id="acme", ordering_key=None)
        run(box)
        times = [(stored(each).updated_at, stored(each).delivered_at) for each in before]
        erase_all(box)
        for event, (updated_at, delivered_at) in zip(before, times, strict=True):
            row = stored(event)
            assert (row.payload, row.headers, row.correlation_id, row.subject) == ({}, {}, None, None)
            assert (row.event_type, row.aggregate_id) == (event.event_type, event.aggregate_id)
            assert (row.seq, row.tenant_id, row.created_at) == (event.seq, "acme", event.created_at)
            assert (row.updated_at, row.delivered_at) == (updated_at, delivered_at)
            assert row.erased_at is not None
        assert stored(failed).progress["crm"]["state"] == "failed"
        assert (stored(failed).error_message, stored(delivered).error_message) == ("erased", None)
        assert read_attempts(box.dialect, failed.id) == []

    def test_what_is_about_others_is_not_changed(self, box: Outbox, crm: Receiver) -> None:
        others = [*emit(1), *emit_secrets(subject="user:70"), *emit_secrets(subject="USER:7")]
        emit_secrets()
        run(box)
        erase_all(box)
        for other in others:
            assert (stored(other).payload, stored(other).erased_at) == (other.payload, None)

    def test_it_is_found_by_tenant_and_by_aggregate_too(self, box: Outbox, crm: Receiver) -> None:
        of_tenant = emit_secrets(tenant_id="acme", subject=None)[0]
        of_order, of_another = emit_secrets(2, subject=None)
        run(box)
        assert erase_all(box, Filter(tenant_id="acme")) == 1
        assert erase_all(box, Filter(aggregate_type="Order", aggregate_id="1")) == 1
        assert [stored(each).payload for each in (of_tenant, of_another)] == [{}, {}]
        assert stored(of_order).payload == {"mail": SECRET}

    def test_a_job_is_erased_like_an_event(self, box: Outbox, charge: dramatiq.Actor[Any, Any]) -> None:
        with box.database.atomic():
            outbox.send_with_options(charge, args=(SECRET,), idempotency_key=SECRET, subject="user:7")
        job = OutboxEvent.get()
        assert job.subject == "user:7"
        change(job, status=DELIVERED, next_attempt_at=None, delivered_at=job.created_at)
        assert erase_all(box) == 1
        assert SECRET not in dump(box)
        assert stored(job).idempotency_key.startswith("job:erased:")

    def test_rows_are_erased_without_the_key_that_encrypted_them(self, box: Outbox, crm: Receiver) -> None:
        with_key = with_keys(box, NEW.text)
        with box.database.atomic():
            event = with_key.emit("User", 7, "user.created", {"mail": SECRET}, subject="user:7")
        run(with_key)
        assert erase_all(box) == 1
        assert stored(event).payload == {}
        assert "outbox_encrypted" not in dump(box)


class TestIdempotencyKeys:
    def test_a_key_that_says_no_more_than_the_row_does_stays(self, box: Outbox, crm: Receiver) -> None:
        with box.database.atomic():
            default = outbox.emit("User", 7, "user.created", subject="user:7")
            unique = outbox.emit("User", 7, "user.seen", subject="user:7", idempotency_key=outbox.UNIQUE)
        run(box)
        erase_all(box)
        assert [stored(each).idempotency_key for each in (default, unique)] == ["User:7", str(unique.id)]
        with pytest.raises(outbox.DuplicateEvent), box.database.atomic():
            outbox.emit("User", 7, "user.created")

    def test_one_that_the_application_has_chosen_is_freed_unless_it_is_to_be_kept(
        self, box: Outbox, crm: Receiver
    ) -> None:
        first, second = emit_secrets(idempotency_key="k1"), emit_secrets(idempotency_key="k2", subject="user:8")
        run(box)
        erase_all(box)
        erase_all(box, Filter(subject="user:8"), keep_keys=True)
        assert stored(first[0]).idempotency_key.startswith("erased:")
        assert stored(second[0]).idempotency_key == "k2"


class TestWhatHasNotEnded:
    def test_nothing_is_erased_unless_it_is_said_what_becomes_of_it(self, box: Outbox, crm: Receiver) -> None:
        ended = emit_secrets()[0]
        run(box)
        waiting = emit_secrets()[0]
        with pytest.raises(UnfinishedEvents, match="1 event has not ended"):
            erase_all(box)
        assert [stored(each).payload for each in (ended, waiting)] == [{"mail": SECRET}] * 2
        assert audit.latest(box.dialect) == []

    def test_it_is_delivered_first(self, box: Outbox, crm: Receiver) -> None:
        waiting = emit_secrets()[0]
        assert erase_all(box, pending="deliver") == 0
        run(box)
        assert len(crm.got) == 1
        assert stored(waiting).status == DELIVERED
        assert erase_all(box, pending="deliver") == 1
        assert SECRET not in dump(box)

    def test_or_it_is_dropped_and_nothing_waits_behind_it(self, box: Outbox, crm: Receiver) -> None:
        crm.outcomes["0"] = Retry(f"{SECRET} is locked", timedelta(hours=1))
        dropped = emit_secrets(ordering_key="k")[0]
        follower = emit_one(ordering_key="k", payload={"n": 1}, aggregate_id="9")
        run(box)
        assert stored(follower).status == PENDING
        assert erase_all(box, pending="drop") == 1
        row = stored(dropped)
        assert (row.status, row.error_message) == (FAILED, "dropped by an operator, and erased")
        assert SECRET not in dump(box)
        run(box)
        assert stored(follower).status == DELIVERED
        assert crm.calls["0"] == 1

    def test_what_a_worker_is_delivering_is_left_to_it(self, box: Outbox) -> None:
        event = emit_secrets()[0]
        claimed(box)
        found = preview(box.dialect, ALICE_S)
        assert (found.ended, found.waiting, found.being_delivered) == (0, 0, 1)
        assert erase_all(box, pending="drop") == 0
        assert stored(event).payload == {"mail": SECRET}
        expire_leases()
        assert erase_all(box, pending="drop") == 1
        assert statuses() == {FAILED: 1}

    def test_what_a_worker_claims_meanwhile_is_left(self, box: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
        event = emit_secrets()[0]
        eraser = _Eraser(drop=True, keep_keys=False)
        rows = [stored(event)]
        claimed(box)
        assert eraser.run(box.dialect, rows) == []
        assert stored(event).payload == {"mail": SECRET}

    def test_a_worker_that_comes_too_late_writes_nothing_back(self, box: Outbox) -> None:
        def erase_meanwhile(event: Event) -> None:
            expire_leases()
            erase_all(box, pending="drop")
            raise outbox.Reject(SECRET)

        box.registry.handler("*", name="slow")(erase_meanwhile)
        emit_secrets()
        box.process_pending_events()
        assert statuses() == {FAILED: 1}
        assert SECRET not in dump(box)


class TestWhatWasErased:
    @pytest.fixture
    def erased(self, box: Outbox, crm: Receiver) -> list[OutboxEvent]:
        crm.outcomes["0"] = Failed("no")
        events = emit_secrets(2)
        run(box)
        erase_all(box)
        crm.got.clear()
        return [stored(event) for event in events]

    def test_is_neither_retried_nor_replayed(self, box: Outbox, crm: Receiver, erased: list[OutboxEvent]) -> None:
        for action in (RETRY, REPLAY):
            assert count_all(box, action) == change_all(box, action) == 0
            assert action.run(box.dialect, erased) == []  # it was selected before it was erased
        assert outbox.retry_failed_events() == 0
        run(box)
        assert crm.got == []
        offered = [{action.name for action in actions_on(event)} for event in erased]
        assert offered == [{DELETE.name}, {DELETE.name}]

    def test_can_be_deleted(self, box: Outbox, erased: list[OutboxEvent]) -> None:
        assert change_all(box, DELETE) == 2

    def test_is_erased_once(self, box: Outbox, erased: list[OutboxEvent]) -> None:
        assert erase_all(box) == 0
        assert erase_all(box, Filter(aggregate_type="Order", aggregate_id="0")) == 0


class TestTheAuditEntry:
    def test_says_how_many_and_which_and_not_about_whom(self, box: Outbox, crm: Receiver) -> None:
        events = emit_secrets(3, tenant_id="acme")
        run(box)
        erase_all(box, Filter(subject="user:7", tenant_id="acme"))
        erase_all(box, Filter(subject="user:7"), pending="deliver", keep_keys=True)
        second, first = audit.latest(box.dialect)
        assert (first.action, first.affected, first.outcome, first.total) == ("erase", 3, "done", 3)
        assert set(audit.changed_ids(box.dialect, first.id)) == {event.id for event in events}
        assert first.parameters == {"pending": "refuse"}
        assert second.parameters == {"pending": "deliver", "keep_keys": True}
        assert "user:7" not in json.dumps([first.filters, second.filters])
        assert first.filters["subject"] != second.filters["subject"]
        assert is_about(first.filters, "user:7")
        assert is_about(first.filters, "acme")
        assert not is_about(first.filters, "user:8")
        assert not is_about({"subject": "user:7"}, "user:7")

    def test_is_a_job_that_can_be_stopped_and_repeated(self, box: Outbox, crm: Receiver) -> None:
        emit_secrets(30)
        run(box)
        notify = box.notifier.notify_after_commit
        work = erase(box.dialect, notify, ALICE_S, operator=ALICE, batch_size=10)
        next(work)
        (entry,) = audit.latest(box.dialect)
        bulk_actions.stop(box.dialect, entry.id, operator=ALICE)
        next(work)
        with pytest.raises(Interrupted):
            next(work)
        _, entry = audit.latest(box.dialect)
        assert (entry.affected, entry.total, entry.outcome) == (20, 30, "interrupted")
        with pytest.raises(outbox.OutboxError, match="nothing left"):
            bulk_actions.resume(box.dialect, notify, box.registry, entry.id, operator=ALICE)
        assert erase_all(box) == 10


@pytest.mark.parametrize(
    "which",
    [
        Filter(),
        Filter(aggregate_type="Order"),
        Filter(subject="user:7", status=FAILED),
        Filter(event_type="order.placed"),
    ],
)
def test_too_much_is_not_erased_by_mistake(box: Outbox, which: Filter) -> None:
    with pytest.raises(SettingsError):
        erase_all(box, which)
    with pytest.raises(SettingsError, match="pending must be"):
        erase_all(box, pending="maybe")


def test_attempts_that_a_worker_adds_at_the_same_moment_are_deleted(box: Outbox, crm: Receiver) -> None:
    """Its statement has begun before the event was erased, and ends after it."""
    event = emit_secrets()[0]
    run(box)
    work = erase(box.dialect, box.notifier.notify_after_commit, ALICE_S, operator=ALICE)
    next(work)
    box.dialect.run(
        "INSERT INTO outbox_attempt (event_id, destination, at, seconds, outcome, error, worker) "
        "SELECT id, 'crm', created_at, 0.1, 'failed', 'quoted', 'host:1' FROM outbox_event"
    )
    assert read_attempts(box.dialect, event.id)
    list(work)
    assert read_attempts(box.dialect, event.id) == []


def test_a_breakdown_says_which_events_an_action_would_change(box: Outbox) -> None:
    emit(3)
    emit(1, "note.taken")
    found = breakdown(box.dialect, FAIL, Filter(), most_parts=1)
    assert [(part.name, part.status, part.count) for part in found.parts] == [("order.placed", PENDING, 3)]
    assert (found.others, found.total) == (1, 4)
    assert found.parts[0].oldest <= found.parts[0].newest
