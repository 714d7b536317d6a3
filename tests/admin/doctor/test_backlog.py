"""The doctor's checks of events: expired leases, due events, open circuit breakers, failed events."""

import re
from datetime import timedelta
from typing import Any

import pytest

import outbox
from outbox.admin.doctor.check import OK, PROBLEM, WARNING
from outbox.core import Outbox
from outbox.storage.operator_models import Minute
from outbox.telemetry.process_reports import WORKER
from tests.admin.doctor.findings import advice_of, finding_of, findings_of
from tests.admin.doctor.published_processes import publish_process
from tests.conftest import Configure
from tests.support.table import change, claimed, emit, let_pass


def test_an_empty_table_is_fine(box: Outbox) -> None:
    assert {finding_of(box, each).level for each in ("leases", "backlog", "breakers", "failed")} == {OK}


# Leases


@pytest.mark.parametrize(("seconds", "level"), [(0, OK), (85, OK), (200, PROBLEM)])
def test_a_lease_that_expired_long_ago_is_a_problem(box: Outbox, seconds: float, level: str) -> None:
    emit(3)
    claimed(box, 2)
    let_pass(seconds=seconds)  # the lease takes 30 of them, and sweeps may take some
    found = finding_of(box, "leases")
    assert found.level == level
    if level == PROBLEM:
        assert "The leases of 2 events have expired" in found.what
        assert "outbox scheduler" in advice_of(found)
        box.process_pending_events()
        box.process_pending_events()
        assert finding_of(box, "leases").level == OK


@pytest.mark.parametrize(("seconds", "level"), [(300, OK), (500, PROBLEM)])
def test_a_long_lease_may_have_expired_for_longer(configure: Configure, seconds: float, level: str) -> None:
    box = configure(lease_seconds=200)
    emit(1)
    claimed(box)
    let_pass(seconds=seconds)
    assert finding_of(box, "leases").level == level


# The backlog


def count(box: Outbox, minutes_ago: int, **counts: int) -> None:
    with box.dialect.connection():
        minute = box.dialect.now().replace(second=0, microsecond=0) - timedelta(minutes=minutes_ago)
        for name, value in counts.items():
            Minute.insert(minute=minute, name=name, labels="", value=value).execute(box.database)


@pytest.mark.parametrize(("seconds", "level"), [(40, OK), (200, WARNING), (400, PROBLEM)])
def test_events_that_have_been_due_for_long_are_a_problem(box: Outbox, seconds: float, level: str) -> None:
    emit(3)
    let_pass(seconds=seconds)
    found = finding_of(box, "backlog")
    assert (found.level, "3 events are due" in found.what) == (level, True)


@pytest.mark.parametrize(
    ("counts", "level", "words"),
    [
        ({"emitted": 500, "delivered": 100}, PROBLEM, "the backlog grows"),
        ({"emitted": 100, "delivered": 500}, WARNING, "the backlog shrinks"),
        ({"emitted": 100, "delivered": 50, "failed": 51}, WARNING, "the backlog shrinks"),
    ],
)
def test_late_events_are_reported_with_whether_the_backlog_grows(
    box: Outbox, counts: dict[str, Any], level: str, words: str
) -> None:
    emit(3)
    let_pass(hours=2)
    count(box, 3, **counts)
    count(box, 30, emitted=10_000, delivered=10_000)  # too long ago to count
    count(box, 0, emitted=10_000, delivered=10_000)  # the current minute
    found = finding_of(box, "backlog")
    assert (found.level, words in found.what) == (level, True)
    assert "the oldest for 2 h" in found.what
    assert f"in the last 10 minutes {counts['emitted']} were emitted" in found.what


def test_events_with_a_later_due_time_are_not_late(box: Outbox) -> None:
    emit(3, deliver_after=timedelta(days=3))
    let_pass(days=2)
    assert finding_of(box, "backlog").level == OK


# Circuit breakers


def test_an_open_circuit_breaker_is_a_problem_with_the_last_error_and_since_when(box: Outbox) -> None:
    breaker = {"open": True, "trips": 3, "seconds": 12.5, "error": "ConnectError: refused"}
    older: dict[str, Any] = {
        "destinations": {"crm": {"kind": "Webhook"}},
        "breakers": {"crm": breaker | {"open_seconds": 840.0}},
    }
    publish_process(box, destinations={"billing": {"kind": "Webhook"}}, breakers={"billing": breaker})
    publish_process(box, **older)
    crm, billing = sorted(findings_of(box, "breakers"), key=lambda each: "billing" in each.what)
    assert (billing.level, "billing is unavailable" in billing.what) == (PROBLEM, True)
    assert "ConnectError: refused" in billing.what
    assert crm.brief == "crm has been unavailable for 14 min"


def test_a_breaker_that_a_worker_has_opened_is_reported(box: Outbox) -> None:
    @outbox.handler("*", name="billing")
    def refuse(event: outbox.Event) -> None:
        raise outbox.Unavailable("no route")

    emit(20)
    for _ in range(20):
        box.process_pending_events(1)
    emit(1)  # this one was not tried there
    box.reporter.kind = WORKER
    box.reporter.report_now()
    found = finding_of(box, "breakers")
    assert (found.level, "no route" in found.what) == (PROBLEM, True)
    assert re.fullmatch(r"billing has been unavailable for .*s, 20 events wait", found.brief)


# Failed events


def test_failed_events_are_a_warning_with_their_number_and_the_most_frequent_cause(box: Outbox) -> None:
    @outbox.handler("*", name="billing")
    def refuse(event: outbox.Event) -> None:
        raise outbox.Reject("no such account" if event.aggregate_id != "0" else "something else")

    emit(3)
    box.process_pending_events()
    found = finding_of(box, "failed")
    assert found.level == WARNING
    assert "3 events have failed" in found.what
    assert "most often at billing: Reject: no such account" in found.what
    assert "outbox list --status failed" in advice_of(found)
    outbox.retry_failed_events()
    assert finding_of(box, "failed").level == OK


def test_a_failed_event_without_progress_is_reported_too(box: Outbox) -> None:
    emit(1)
    change(status="failed", next_attempt_at=None, error_message="by hand")
    assert "at no destination: by hand" in finding_of(box, "failed").what
