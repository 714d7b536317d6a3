"""What the doctor finds out about jobs."""

from typing import Any

from dramatiq.brokers.stub import StubBroker

import outbox
from outbox.admin.doctor.check import OK, PROBLEM, WARNING
from outbox.core import Outbox
from outbox.storage.models import FAILED, KINDS
from outbox.telemetry.process_reports import WORKER
from tests.admin.doctor.findings import advice_of, finding_of, findings_of
from tests.admin.doctor.published_processes import publish_process, published_handlers
from tests.support.jobs import send, send_to_nobody
from tests.support.table import change, emit_one


def test_no_destination_has_to_want_a_job(box: Outbox, charge: Any) -> None:
    publish_process(box, destinations=published_handlers(billing=["order.*"]))
    send(charge, 1)
    (found,) = findings_of(box, "handlers")
    assert found.level == OK


def test_a_job_that_waits_for_a_worker_is_a_problem_that_names_the_actor(box: Outbox, stub_broker: StubBroker) -> None:
    send_to_nobody(box, stub_broker, "gone")
    (found,) = findings_of(box, "handlers")
    assert (found.level, "1 job of the actor 'gone' waits" in found.what) == (PROBLEM, True)
    assert "outbox worker your.module" in advice_of(found)
    assert "`outbox fail --actor gone`" in advice_of(found)


def test_a_job_that_waits_for_a_worker_is_not_an_event_without_destination(
    box: Outbox, stub_broker: StubBroker
) -> None:
    send_to_nobody(box, stub_broker, "gone")
    outbox.handler("order.*", name="billing")(lambda event: None)
    assert "destination" not in findings_of(box, "handlers")[0].what


def test_a_worker_that_does_not_know_jobs_is_a_problem_if_there_are_any(box: Outbox, charge: Any) -> None:
    publish_process(box, pid=1)
    publish_process(box, pid=2, kinds=list(KINDS))
    emit_one()
    assert finding_of(box, "kinds").level == OK
    send(charge, 1)
    (found,) = findings_of(box, "kinds")
    assert (found.level, "alpha:1 runs a version" in found.what) == (PROBLEM, True)
    assert "Stop alpha:1" in advice_of(found)


def test_a_worker_of_this_version_knows_jobs(box: Outbox, charge: Any) -> None:
    box.reporter.kind = WORKER
    box.reporter.report_now()
    send(charge, 1)
    assert finding_of(box, "kinds").level == OK


def test_failed_jobs_are_counted_as_jobs(box: Outbox, charge: Any) -> None:
    change(send(charge, 1), status=FAILED, next_attempt_at=None)
    found = finding_of(box, "failed")
    assert (found.level, found.what.startswith("1 job has failed and is not tried again")) == (WARNING, True)
    change(emit_one(), status=FAILED, next_attempt_at=None)
    assert finding_of(box, "failed").what.startswith("1 event and 1 job have failed and are not tried again")
