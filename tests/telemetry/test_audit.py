"""The audit log as evidence: who it was, everything that was given, which events, and how it ended."""

import json
import logging
from datetime import UTC, datetime
from typing import Any

import pytest

from outbox.core import Outbox
from outbox.destinations.retirement import retire
from outbox.operations.actions import DELETE, FAIL, RETRY, fail_with
from outbox.operations.filters import Filter
from outbox.storage.ids import uuid7
from outbox.storage.models import OutboxEvent
from outbox.storage.operator_models import AuditBatch
from outbox.telemetry import audit, logs
from outbox.telemetry.audit import Interrupted, Operator
from tests.operations.changing import apply, change_all
from tests.support.table import change, emit, statuses

ADA = Operator("root@db1", claimed="ada", via="command line")
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def last(box: Outbox) -> Any:
    return audit.latest(box.dialect)[0]


def ids_of(box: Outbox, entry: Any) -> set[Any]:
    return set(audit.changed_ids(box.dialect, entry.id))


def ended(count: int) -> list[OutboxEvent]:
    events = emit(count)
    change(*events, status="failed", next_attempt_at=None)
    return events


def test_an_entry_has_the_operator_what_was_given_and_how_it_ended(box: Outbox) -> None:
    events = emit(3, tenant_id="acme")
    change_all(box, fail_with("the old system"), Filter(tenant_id="acme"), operator=ADA, limit=2, per_second=1e6)
    entry = last(box)
    assert (entry.who, entry.claimed, entry.via) == ("root@db1", "ada", "command line")
    assert (entry.action, entry.filters) == ("fail", {"tenant_id": "acme"})
    assert entry.parameters == {"reason": "the old system", "limit": 2, "per_second": 1e6}
    assert (entry.outcome, entry.cause, entry.affected) == ("done", None, 2)
    assert ids_of(box, entry) == {event.id for event in events[:2]}


def test_the_ids_of_deleted_events_are_kept(box: Outbox) -> None:
    events = ended(7)
    change_all(box, DELETE, operator=ADA, batch_size=3)
    assert statuses() == {}
    assert list(audit.changed_ids(box.dialect, last(box).id)) == [event.id for event in events]
    assert list(audit.changed_ids(box.dialect, last(box).id, 4)) == [event.id for event in events[:4]]
    assert AuditBatch.select().count(box.database) == 3


def test_ids_in_many_batches_are_all_listed(box: Outbox) -> None:
    events = ended(25)
    change_all(box, DELETE, operator=ADA, batch_size=1)
    assert list(audit.changed_ids(box.dialect, last(box).id)) == [event.id for event in events]
    assert len(list(audit.changed_ids(box.dialect, last(box).id, 11))) == 11


def test_only_ids_that_were_changed_are_kept(box: Outbox) -> None:
    """An event that a worker is delivering right now is not changed."""
    waiting, _ = emit(1), ended(1)
    leased = emit(1)
    change(*leased, status="sending", lease_until=datetime(2999, 1, 1, tzinfo=UTC))
    change_all(box, FAIL, operator=ADA)
    assert ids_of(box, last(box)) == {waiting[0].id}
    assert last(box).affected == 1


def test_a_batch_that_is_rolled_back_leaves_no_ids(box: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
    ended(2)

    def fail_late(*_: Any) -> None:
        raise RuntimeError("hush: in the middle")

    monkeypatch.setattr(box.notifier, "notify_after_commit", fail_late)
    with pytest.raises(RuntimeError):
        change_all(box, RETRY, operator=ADA)
    entry = last(box)
    assert (entry.outcome, entry.cause, entry.affected, ids_of(box, entry)) == ("interrupted", "RuntimeError", 0, set())
    assert entry.ended_at is not None


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (Interrupted("SIGTERM"), "SIGTERM"),
        (KeyboardInterrupt(), "SIGINT"),
        (SystemExit(1), "SystemExit"),
        (ValueError("hush"), "ValueError"),
    ],
)
def test_an_interrupted_action_ends_as_interrupted_with_what_was_done(
    box: Outbox, error: BaseException, cause: str
) -> None:
    events = emit(7)
    work = apply(box, FAIL, operator=ADA, batch_size=3)
    next(work)
    with pytest.raises(type(error)):
        work.throw(error)
    entry = last(box)
    assert (entry.outcome, entry.cause, entry.affected) == ("interrupted", cause, 3)
    assert ids_of(box, entry) == {event.id for event in events[:3]}
    assert not box.dialect.in_transaction


def test_an_action_that_the_application_runs_writes_nothing(box: Outbox, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    emit(2)
    change_all(box, FAIL)
    assert audit.latest(box.dialect) == []
    assert AuditBatch.select().count(box.database) == 0
    assert [record for record in caplog.records if record.name == "outbox.audit"] == []


def test_old_ids_are_deleted_with_their_entries(box: Outbox) -> None:
    ended(2)
    change_all(box, DELETE, operator=ADA)
    box.delete_old_records()
    assert AuditBatch.select().count(box.database) == 1
    AuditBatch.update(at=LONG_AGO).execute(box.database)
    box.delete_old_records()
    assert AuditBatch.select().count(box.database) == 0


def test_names_that_no_database_can_store_are_cleaned_and_cut(box: Outbox) -> None:
    emit(1)
    change_all(box, FAIL, operator=Operator("a\x00b\ud800", claimed="c\x00" * 400, via="d" * 400))
    entry = last(box)
    assert (entry.who, len(entry.claimed), len(entry.via)) == ("a\N{REPLACEMENT CHARACTER}b?", 255, 255)


# The log


def lines(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == "outbox.audit"]


def test_each_entry_is_logged_when_it_begins_and_when_it_ends(box: Outbox, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="outbox.audit")
    emit(3, tenant_id="acme")
    change_all(box, fail_with("why not"), Filter(tenant_id="acme"), operator=ADA)
    began, ended = lines(caplog)
    entry = last(box)
    assert began.getMessage() == (
        'fail begins: who="root@db1", claimed="ada", via="command line", filters={"tenant_id": "acme"}, '
        f'parameters={{"reason": "why not"}}, id={entry.id}'
    )
    assert ended.getMessage() == (
        f'fail ends: who="root@db1", claimed="ada", via="command line", outcome="done", affected=3, id={entry.id}'
    )
    fields = json.loads(logs.JsonFormatter().format(ended))
    assert (fields["audit_id"], fields["who"], fields["action"]) == (str(entry.id), "root@db1", "fail")
    assert (fields["affected"], fields["outcome"]) == (3, "done")


def test_a_name_can_not_forge_a_line_of_the_log(box: Outbox, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="outbox.audit")
    change_all(
        box, fail_with("\x1b[2J\n\u202eevil\x85"), operator=Operator("eve\n2026 INFO outbox.audit: delete begins")
    )
    assert all(record.getMessage().isprintable() for record in lines(caplog))


def test_an_interruption_is_logged_even_if_the_database_can_not_be_used(
    box: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="outbox.audit")
    emit(4)
    work = apply(box, FAIL, operator=ADA, batch_size=3)
    next(work)
    box.dialect.run("ALTER TABLE outbox_audit RENAME TO gone")
    with pytest.raises(Interrupted):
        work.throw(Interrupted("SIGTERM"))
    assert [record.levelname for record in lines(caplog)] == ["INFO", "WARNING", "INFO"]
    assert 'outcome="interrupted", cause="SIGTERM", affected=3' in lines(caplog)[-1].getMessage()
    box.dialect.run("ALTER TABLE gone RENAME TO outbox_audit")


def test_retiring_a_destination_is_logged_with_its_parameters(box: Outbox, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="outbox.audit")
    retire(box.dialect, "crm", retired_by=ADA, force=True)
    entry = last(box)
    assert entry.filters == {"destination": "crm", "replaced_by": None, "force": True}
    assert (entry.who, entry.claimed, entry.outcome) == ("root@db1", "ada", "done")
    assert [record.getMessage().split(":")[0] for record in lines(caplog)] == ["retire begins", "retire ends"]


# Beside workers of an older version


def test_entries_of_an_older_version_are_listed(box: Outbox) -> None:
    columns = "INSERT INTO outbox_audit (id, at, who, action, filters, affected)"
    box.dialect.run(f"{columns} VALUES ('{uuid7()}', '{LONG_AGO}', 'ada', 'fail', '{{}}', 3)")
    entry = last(box)
    assert (entry.who, entry.claimed, entry.parameters, entry.outcome) == ("ada", None, None, None)
    assert ids_of(box, entry) == set()
