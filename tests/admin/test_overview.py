"""The overview: its numbers are those of the table and of the processes."""

from datetime import timedelta
from typing import Any

import peewee
import pytest

import outbox
from outbox.admin.durations import format_bound
from outbox.admin.failures import MOST_EVENTS, Failure, cause_of, read_failures
from outbox.admin.overview import backlog, overview
from outbox.admin.recent_activity import Activity
from outbox.core import Outbox
from outbox.operations.count import Count
from outbox.storage.operator_models import Minute, Process
from outbox.telemetry.process_reports import SCHEDULER, WORKER
from tests.support.table import LONG_AGO, another, change, claimed, emit, emit_one, expire_leases, let_pass


def failed(**errors: str) -> dict[str, Any]:
    """The columns of an event that has failed at these destinations."""
    progress = {name: {"state": "failed", "attempts": 1, "error": error} for name, error in errors.items()}
    return {"status": "failed", "next_attempt_at": None, "progress": progress}


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("HTTP 503 Service Unavailable", "HTTP 503 Service Unavailable"),
        ('HTTP 422 No: {"id": 7, "errors": [{"field": "a"}]} (cut)', "HTTP 422 No: {…} (cut)"),
        ('HTTP 422 No: {"id": 7, "text": "a long one that was cu', "HTTP 422 No: {…"),
        ('HTTP 400: ["a", {"b": 1}]', "HTTP 400: […]"),
        ("HTTP 500: <!DOCTYPE html><html><body>7</body></html>", "HTTP 500: <…>"),
        ("KeyError: 'customer-17'", "KeyError: '…'"),
        ('no user "Ann" in `eu`', 'no user "…" in `…`'),
        ("can't reach it, it isn't there", "can't reach it, it isn't there"),
        ("no order 17 in 2.50 EUR", "no order … in … EUR"),
        ("[Errno 111] Connection refused", "[Errno 111] Connection refused"),
        ("exit code 2 after 31 s", "exit code 2 after … s"),
        ("<Lock at 0x7f3a2bc> is held", "<Lock at …> is held"),
        ("no 0198c0de-0000-7000-8000-00000000000a, no cus_8fk2M1x", "no …, no …"),
        ("mailbox ann.b@example.com is full", "mailbox … is full"),
        ("utf8 of S3 in v2", "utf8 of S3 in v2"),
        ("two\n lines", "two lines"),
        ("x" * 200, "x" * 159 + "…"),
    ],
)
def test_a_cause_is_what_errors_have_in_common(error: str, cause: str) -> None:
    assert cause_of(error) == cause


def test_the_overview_of_an_empty_outbox_is_empty(box: Outbox) -> None:
    view = overview(box.dialect)
    assert {status: str(count) for status, count in view.counts.items()} == {
        "pending": "0",
        "sending": "0",
        "delivered": "0",
        "failed": "0",
    }
    assert (view.failures, view.latency, view.breakers, view.processes) == ([], {}, {}, [])
    assert (view.backlog.oldest_created_at, view.backlog.oldest_due_at) == (None, None)
    assert [minute.delivered for minute in view.activity] == [0] * 60


def test_counts_events_by_their_state(box: Outbox) -> None:
    @outbox.handler("bad", name="bad")
    def refuse(event: outbox.Event) -> None:
        raise outbox.Reject("no")

    outbox.handler("good", name="good")(lambda event: None)
    emit(3, "good")
    emit(2, "bad")
    box.process_pending_events()
    emit(4, "unknown")
    claimed(box)
    emit(1, "unknown")
    view = overview(box.dialect)
    assert {status: count.number for status, count in view.counts.items()} == {
        "pending": 1,
        "sending": 4,
        "delivered": 3,
        "failed": 2,
    }


class TestTheBacklog:
    def test_counts_due_and_in_flight_events_and_expired_leases(self, box: Outbox) -> None:
        live, lost = emit_one(), None
        claimed(box)
        lost = emit_one()
        claimed(box)
        expire_leases(lost)
        emit(2)
        emit(3, deliver_after=timedelta(hours=1))
        backlog = overview(box.dialect).backlog
        assert (backlog.unfinished, backlog.due, backlog.in_flight, backlog.expired) == (
            Count(7),
            Count(3),
            Count(1),
            Count(1),
        )
        assert live is not None

    def test_has_the_age_of_the_oldest_event_and_since_when_one_is_due(self, box: Outbox) -> None:
        emit_one()
        let_pass(hours=2)
        emit_one()
        view = overview(box.dialect)
        assert view.backlog.oldest_created_at is not None
        assert view.backlog.oldest_due_at is not None
        for moment in (view.backlog.oldest_created_at, view.backlog.oldest_due_at):
            assert timedelta(hours=2) <= view.now - moment < timedelta(hours=3)

    def test_is_counted_up_to_a_cap(self, box: Outbox) -> None:
        emit(5)
        found = backlog(box.dialect, box.dialect.now(), cap=3)
        assert (str(found.unfinished), str(found.due)) == ("3+", "3+")

    def test_has_the_age_of_the_oldest_even_if_it_is_due_last(self, box: Outbox) -> None:
        oldest = emit_one()
        emit(3)
        change(oldest, created_at=LONG_AGO, next_attempt_at=box.dialect.now() + timedelta(hours=1))
        assert overview(box.dialect, cap=4).backlog.oldest_created_at == LONG_AGO


class TestFailures:
    def test_are_grouped_by_destination_and_error_the_most_frequent_first(self, box: Outbox) -> None:
        @outbox.handler("a.*", name="one")
        def one(event: outbox.Event) -> None:
            raise outbox.Reject(f"no order {event.id} in 123456")

        @outbox.handler("*", name="two")
        def two(event: outbox.Event) -> None:
            if event.event_type != "a.c":
                raise outbox.Reject("closed")

        emit(2, "a.b")
        emit(1, "a.c")
        emit(2, "x")
        box.process_pending_events()
        view = overview(box.dialect)
        assert view.failures_looked_at == Count(5)
        assert view.failures == [
            Failure("two", "Reject: closed", 4),
            Failure("one", "Reject: no order … in …", 3),
        ]
        assert view.failed_at == {"two": Count(4), "one": Count(3)}

    def test_are_counted_by_destination_and_not_by_the_most_frequent_causes(self, box: Outbox) -> None:
        for number, letter in enumerate("abcd"):
            change(emit_one(), **failed(crm=f"Reject: {letter}" if number else "Reject: b"))
        change(emit_one(), **failed(mail="Reject: closed"))
        found = read_failures(box.dialect, most_causes=1)
        assert (found.causes, found.more_causes, found.more_events) == ([Failure("crm", "Reject: b", 2)], 3, 3)
        assert found.by_destination == {"crm": Count(4), "mail": Count(1)}
        assert read_failures(box.dialect, cap=3).by_destination["mail"] == Count(1, at_least=True)

    def test_of_a_cause_have_a_first_and_a_last_time(self, box: Outbox) -> None:
        first, last = timestamps = [LONG_AGO, LONG_AGO + timedelta(hours=3)]
        for moment, number in zip(timestamps, (7, 8), strict=True):
            change(emit_one(), **failed(crm=f"no order {number}"), updated_at=moment)
        (cause,) = read_failures(box.dialect).causes
        assert (cause.error, cause.events, cause.first_at, cause.last_at) == ("no order …", 2, first, last)

    def test_are_read_up_to_a_limit_if_each_has_an_error_of_its_own(self, box: Outbox) -> None:
        emit(MOST_EVENTS + 1)
        change(status="failed", next_attempt_at=None, error_message=peewee.SQL("'no order ' || CAST(id AS text)"))
        assert MOST_EVENTS == 2_000
        view = overview(box.dialect)
        assert (view.failures_looked_at, view.counts["failed"]) == (Count(2_000, at_least=True), Count(2_001))
        assert [failure.error for failure in view.failures] == ["no order …"]

    def test_without_a_destination_are_included(self, box: Outbox) -> None:
        event = emit_one()
        change(event, next_attempt_at=None, status="failed", error_message="failed by an operator")
        assert overview(box.dialect).failures == [Failure("", "failed by an operator", 1)]


class TestActivity:
    def test_is_what_the_processes_have_reported_for_each_minute(self, box: Outbox) -> None:
        outbox.handler("*", name="handler")(lambda event: None)
        emit(3)
        box.process_pending_events()
        box.reporter.report_now()
        second = another(box)
        outbox.emit("Order", "x", "order.placed", idempotency_key="x")
        second.process_pending_events()
        second.reporter.report_now()
        view = overview(box.dialect)
        assert sum(minute.delivered for minute in view.activity) == 4
        assert len(view.activity) == 60
        assert view.activity[0].minute == view.activity[-1].minute - timedelta(minutes=59)

    def test_older_minutes_are_left_out(self, box: Outbox) -> None:
        now = overview(box.dialect).now.replace(second=0, microsecond=0)
        for minutes in (1, 61):
            row = {"minute": now - timedelta(minutes=minutes), "name": "delivered", "labels": "", "value": 5}
            Minute.insert(**row).execute(box.database)
        assert [minute for minute in overview(box.dialect).activity if minute.delivered] == [
            Activity(now - timedelta(minutes=1), delivered=5)
        ]

    def test_latency_is_read_from_the_buckets(self, box: Outbox) -> None:
        box.counters.observe("latency", [0.003] * 98 + [0.2] * 2)
        box.reporter.report_now()
        latency = overview(box.dialect).latency
        assert (latency[0.5], latency[0.99]) == (0.005, 0.25)

    def test_a_latency_is_a_bound_that_holds_and_no_number_in_between(self, box: Outbox) -> None:
        box.counters.observe("latency", [4_000.0] * 95 + [100_000.0] * 5)
        box.reporter.report_now()
        latency = overview(box.dialect).latency
        assert [format_bound(latency[each]) for each in (0.5, 0.99)] == ["≤ 2 h", "> 1 d"]


class TestProcesses:
    def test_are_alive_until_they_have_missed_several_reports(self, box: Outbox) -> None:
        box.reporter.kind = WORKER
        box.reporter.report_now()
        Process.update(details={"publish_seconds": 10}).execute(box.database)
        assert len(overview(box.dialect).workers) == 1
        seen_at = overview(box.dialect).now
        for seconds, alive in ((28, 1), (35, 0)):
            Process.update(seen_at=seen_at - timedelta(seconds=seconds)).execute(box.database)
            assert len(overview(box.dialect).workers) == alive
        assert len(overview(box.dialect).processes) == 1

    def test_breakers_are_those_of_the_latest_report(self, box: Outbox) -> None:
        now = overview(box.dialect).now

        def tell(id: str, seconds_ago: float, **breakers: Any) -> None:
            details = {"destinations": {"runner": {}, "bus": {}}, "breakers": breakers}
            row = {"id": id, "kind": WORKER, "host": "h", "pid": 1, "details": details, "started_at": now}
            Process.insert(**row, seen_at=now - timedelta(seconds=seconds_ago)).execute(box.database)

        tell("old", 5, runner={"open": True, "seconds": 3, "error": "refused"}, bus={"open": True})
        tell("new", 1, runner={"open": False, "seconds": 0, "error": ""})
        assert overview(box.dialect).breakers == {"runner": {"open": False, "seconds": 0, "error": ""}}

    def test_an_open_breaker_wins_where_each_process_has_its_own(self, box: Outbox) -> None:
        now = overview(box.dialect).now

        def tell(id: str, seconds_ago: float, *, tried: list[str], shares: bool = False, **breakers: Any) -> None:
            details = {"tried": tried, "breakers": breakers, "shares_breakers": shares, "destinations": {"crm": {}}}
            row = {"id": id, "kind": WORKER, "host": "h", "pid": 1, "details": details, "started_at": now}
            Process.insert(**row, seen_at=now - timedelta(seconds=seconds_ago)).execute(box.database)

        tell("open", 5, tried=["crm"], crm={"open": True})
        tell("closed", 1, tried=["crm"])
        tell("recovering", 1, tried=["crm"], crm={"open": False})
        assert overview(box.dialect).breakers["crm"]["open"]
        Process.update(seen_at=now - timedelta(minutes=5)).where(Process.id == "open").execute(box.database)
        assert not overview(box.dialect).breakers["crm"]["open"]  # the one that was open is gone
        tell("killed", 300, tried=["crm"], shares=True, crm={"open": True})
        assert not overview(box.dialect).breakers["crm"]["open"]

    def test_a_process_that_has_sent_nothing_to_a_destination_does_not_say_that_it_is_well(self, box: Outbox) -> None:
        # A scheduler has the destinations of the settings as well, and may be the last to report.
        @box.registry.handler("order.placed", name="crm")
        def refuse(event: outbox.Event) -> None:
            raise outbox.Unavailable("refused")

        def report(reporting: Outbox, kind: str) -> None:
            reporting.reporter.kind = kind
            reporting.reporter.report_now()

        scheduler = another(box)
        for number in range(10):
            box.emit("Order", number, "order.placed")
        box.process_pending_events()
        report(box, WORKER)
        report(scheduler, SCHEDULER)
        assert overview(box.dialect).breakers["crm"]["open"]
