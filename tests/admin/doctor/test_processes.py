"""The doctor's checks of the running processes, and of their consistency."""

import pytest

import outbox
from outbox.admin.doctor.check import NOTE, OK, PROBLEM, WARNING
from outbox.admin.overview import overview
from outbox.core import Outbox
from outbox.storage.operator_models import Process
from outbox.telemetry.process_reports import APPLICATION, SCHEDULER, UP, WORKER
from tests.admin.doctor.findings import advice_of, finding_of, findings_of
from tests.admin.doctor.published_processes import publish_process, published_handlers
from tests.conftest import Configure
from tests.support.table import another


@pytest.fixture
def box(configure: Configure) -> Outbox:
    """Return an Outbox with reports switched on, as in production; the test does not start them."""
    return configure(publish_seconds=10)


# Running


def test_no_worker_and_no_scheduler_are_problems(box: Outbox) -> None:
    assert [finding_of(box, each).level for each in ("workers", "scheduler")] == [PROBLEM] * 2
    assert "outbox worker your.module" in advice_of(finding_of(box, "workers"))
    assert "outbox scheduler" in advice_of(finding_of(box, "scheduler"))


def test_an_application_is_neither_worker_nor_scheduler(box: Outbox) -> None:
    publish_process(box, APPLICATION)
    assert [finding_of(box, each).level for each in ("workers", "scheduler")] == [PROBLEM] * 2


def test_a_worker_and_a_scheduler_are_named(box: Outbox) -> None:
    publish_process(box, WORKER, host="alpha", pid=7)
    publish_process(box, SCHEDULER, host="beta", pid=8)
    found = [finding_of(box, each) for each in ("workers", "scheduler")]
    assert [each.level for each in found] == [OK, OK]
    assert ("alpha:7" in found[0].what, "beta:8" in found[1].what) == (True, True)


def test_a_worker_that_can_not_reach_its_broker_is_a_problem_that_names_it_and_the_error(box: Outbox) -> None:
    publish_process(box, WORKER, host="alpha", pid=7)
    assert finding_of(box, "broker").level == OK
    publish_process(box, WORKER, host="beta", pid=8, broker_error="ConnectionError: refused.")
    publish_process(box, WORKER, host="gamma", pid=9, seen=600, broker_error="ConnectionError: long ago")
    (found,) = findings_of(box, "broker")
    assert found.level == PROBLEM
    assert "beta:8" in found.what
    assert "ConnectionError: refused. It gets" in found.what
    assert "OUTBOX_REDIS_URL" in advice_of(found)


def test_up_is_both_worker_and_scheduler(box: Outbox) -> None:
    box.reporter.kind = UP
    box.reporter.report_now()
    assert [finding_of(box, each).level for each in ("workers", "scheduler", "silent")] == [OK] * 3


def test_without_reports_it_is_not_known_whether_workers_run(configure: Configure) -> None:
    found = finding_of(configure(publish_seconds=0), "workers")
    assert (found.level, "It is not known" in found.what) == (WARNING, True)
    assert "OUTBOX_PUBLISH_SECONDS" in advice_of(found)


def test_with_inline_dispatch_a_missing_worker_is_a_note(configure: Configure) -> None:
    assert finding_of(configure(dispatch="inline", publish_seconds=10), "workers").level == NOTE


@pytest.mark.parametrize(("seen", "level"), [(25, OK), (60, WARNING)])
def test_a_process_that_stops_reporting_is_named(box: Outbox, seen: float, level: str) -> None:
    publish_process(box, WORKER, host="gamma", pid=9, seen=seen, started=1000)
    found = finding_of(box, "silent")
    assert found.level == level
    if level == WARNING:
        assert "worker gamma:9 last reported 1 min ago" in found.what
        assert "ps -p 9" in advice_of(found)
        assert finding_of(box, "workers").level == PROBLEM


def test_a_web_server_that_was_stopped_is_not_silent_but_gone(box: Outbox) -> None:
    publish_process(box, APPLICATION, seen=40)
    publish_process(box, APPLICATION, pid=2)
    assert finding_of(box, "silent").level == OK
    assert [process.pid for process in overview(box.dialect).processes] == [2]


def test_a_silent_process_that_was_replaced_is_fine(box: Outbox) -> None:
    publish_process(box, WORKER, pid=9, seen=600, started=1000)
    publish_process(box, WORKER, pid=10, started=900)  # was there all the time
    assert finding_of(box, "silent").level == WARNING
    publish_process(box, WORKER, pid=11, started=300)
    assert finding_of(box, "silent").level == OK


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_sqlite_on_several_hosts_is_a_problem(box: Outbox) -> None:
    publish_process(box, WORKER, host="alpha")
    assert finding_of(box, "hosts").level == OK
    publish_process(box, APPLICATION, host="beta")
    found = finding_of(box, "hosts")
    assert (found.level, "alpha, beta" in found.what) == (PROBLEM, True)


# Calls that don't return, drains that fail, pools that are too small


@pytest.mark.parametrize(("all_places", "level"), [(False, WARNING), (True, PROBLEM)])
def test_stuck_calls_are_reported_with_their_destination_and_process(
    box: Outbox, *, all_places: bool, level: str
) -> None:
    publish_process(box, pid=7, stuck={"billing": {"calls": 2, "seconds": 720.0, "all_places": all_places}})
    found = finding_of(box, "calls")
    assert found.level == level
    assert "2 calls of billing on alpha:7 have not returned for 12 min" in found.what
    assert ("nothing more" in found.what) is all_places
    assert "alpha:7" in advice_of(found)


def test_a_process_with_failing_drains_is_reported_with_the_error(box: Outbox) -> None:
    failures = {"in_a_row": 3, "seconds": 60.0, "error": "MaxConnectionsExceeded: Exceeded maximum connections."}
    publish_process(box, pid=7, drain_failures=failures | {"in_a_row": 2})
    assert finding_of(box, "drains").level == OK
    publish_process(box, pid=8, drain_failures=failures)
    found = finding_of(box, "drains")
    assert (found.level, "alpha:8" in found.what, "MaxConnectionsExceeded" in found.what) == (PROBLEM, True, True)


def test_a_pool_that_is_too_small_is_a_warning_with_the_number_to_set(box: Outbox) -> None:
    publish_process(box, pid=7, pool={"size": 33, "wanted": 33})
    assert finding_of(box, "pool").level == OK
    publish_process(box, pid=8, pool={"size": 20, "wanted": 33})
    found = finding_of(box, "pool")
    assert (found.level, "alpha:8 has 20" in found.what) == (WARNING, True)
    assert "max_connections=33" in advice_of(found)


def test_a_process_that_reports_none_of_these_is_fine(box: Outbox) -> None:
    publish_process(box, pool=None)
    box.reporter.kind = WORKER
    box.reporter.report_now()
    assert {finding_of(box, each).level for each in ("calls", "drains", "pool")} == {OK}


# Consistency


def test_workers_with_the_same_destinations_are_fine(box: Outbox) -> None:
    for pid in (1, 2):
        publish_process(box, pid=pid, destinations=published_handlers(billing=["order.*"], mail=["*"]))
    publish_process(box, SCHEDULER, pid=3, destinations={})  # delivers nothing
    assert finding_of(box, "destinations").level == OK


def test_a_worker_that_lacks_a_destination_is_a_problem_that_names_both_workers(box: Outbox) -> None:
    publish_process(box, pid=1, destinations=published_handlers(billing=["order.*"], mail=["*"]))
    publish_process(box, pid=2, destinations=published_handlers(mail=["*"]))
    (found,) = findings_of(box, "destinations")
    assert found.level == PROBLEM
    assert "alpha:2 does not have billing, which alpha:1 has" in found.what
    assert "outbox worker your.module" in advice_of(found)


def test_a_silent_worker_is_not_compared(box: Outbox) -> None:
    publish_process(box, pid=1, destinations=published_handlers(mail=["*"]))
    publish_process(box, pid=2, seen=600, destinations={})
    assert finding_of(box, "destinations").level == OK


@pytest.mark.parametrize(
    "other", [published_handlers(mail=["order.*"]), {"mail": {"kind": "Webhook", "seconds": 20, "events": ["*"]}}]
)
def test_a_destination_that_differs_between_workers_is_a_problem(box: Outbox, other: dict[str, object]) -> None:
    publish_process(box, pid=1, destinations=published_handlers(mail=["*"]))
    publish_process(box, pid=2, destinations=other)
    found = finding_of(box, "destinations")
    assert (found.level, "The destination mail is not the same in all processes" in found.what) == (PROBLEM, True)


def test_reported_destinations_equal_those_registered_here(box: Outbox) -> None:
    outbox.handler("order.*", name="mail")(lambda event: None)
    outbox.add_destination(outbox.Webhook("billing", "http://127.0.0.1/", events=["order.placed"]))
    box.reporter.kind = WORKER
    box.reporter.report_now()
    assert [each.level for each in findings_of(box, "destinations")] == [OK]


def test_a_destination_that_only_this_command_lacks_is_a_warning(box: Outbox) -> None:
    outbox.handler("*", name="mail")(lambda event: None)
    publish_process(box, pid=1, destinations=published_handlers(mail=["*"], billing=["order.*"]))
    found = finding_of(box, "destinations")
    assert (found.level, "this command does not have billing" in found.what) == (WARNING, True)
    assert "outbox doctor -m" in advice_of(found)


def test_different_versions_are_a_warning(box: Outbox) -> None:
    publish_process(box, pid=1)
    assert finding_of(box, "versions").level == OK
    publish_process(box, pid=2, version="0.0.9")
    found = finding_of(box, "versions")
    assert (found.level, "0.0.9 (alpha:2)" in found.what) == (WARNING, True)


@pytest.mark.parametrize("kind", [WORKER, SCHEDULER])
def test_settings_that_differ_are_a_warning(box: Outbox, kind: str) -> None:
    publish_process(box, pid=1)
    assert finding_of(box, "agreement").level == OK
    publish_process(box, kind, pid=2, settings={"lease_seconds": 7.0})
    found = finding_of(box, "agreement")
    assert (found.level, "different values of OUTBOX_LEASE_SECONDS" in found.what) == (WARNING, True)
    assert "7.0 (alpha:2)" in found.what


def test_settings_of_this_command_that_differ_from_the_workers_are_a_warning(configure: Configure) -> None:
    box = configure(publish_seconds=10)
    box.reporter.kind = WORKER
    box.reporter.report_now()
    assert finding_of(another(box), "agreement").level == OK
    assert finding_of(configure(queue="another"), "agreement").level == WARNING


def test_a_process_of_another_release_without_details_is_fine(box: Outbox) -> None:
    publish_process(box)
    with box.dialect.connection():
        Process.update(details={}).execute(box.database)
    levels = {finding_of(box, each).level for each in ("workers", "destinations", "agreement", "handlers", "deadlines")}
    assert levels == {OK}
