"""The doctor's check that a destination wants every event that waits."""

import pytest

import outbox
from outbox import current_outbox
from outbox.admin.doctor.check import NOTE, OK, PROBLEM
from outbox.core import Outbox
from outbox.telemetry.process_reports import WORKER
from tests.admin.doctor.findings import advice_of, finding_of, findings_of
from tests.admin.doctor.published_processes import publish_process, published_handlers
from tests.support.table import emit, let_pass


def test_without_waiting_events_no_handler_is_missing(box: Outbox) -> None:
    assert finding_of(box, "handlers").level == OK


def test_without_reported_destinations_there_is_a_note(box: Outbox) -> None:
    emit(1)
    found = finding_of(box, "handlers")
    assert (found.level, "outbox doctor -m" in advice_of(found)) == (NOTE, True)


def test_a_type_that_no_worker_wants_is_a_problem(box: Outbox) -> None:
    emit(3, "order.placed")
    emit(2, "user.created")
    publish_process(box, destinations=published_handlers(billing=["order.*"]))
    (found,) = findings_of(box, "handlers")
    assert found.level == PROBLEM
    assert "2 events of the type 'user.created'" in found.what
    assert "outbox.ignore('user.created')" in advice_of(found)


def test_a_type_that_any_worker_wants_is_fine(box: Outbox) -> None:
    emit(1, "order.placed")
    emit(1, "user.created")
    publish_process(box, pid=1, destinations=published_handlers(billing=["order.*"]))
    publish_process(box, pid=2, destinations=published_handlers(mail=["user.created"]))
    assert finding_of(box, "handlers").level == OK


def test_a_destination_that_reports_no_types_may_want_any(box: Outbox) -> None:
    emit(1)
    publish_process(box, destinations=published_handlers(own=None))
    assert finding_of(box, "handlers").level == OK


def test_a_type_that_a_worker_ignores_is_fine(box: Outbox) -> None:
    emit(1, "order.placed")
    outbox.handler("user.*", name="mail")(lambda event: None)
    box.reporter.kind = WORKER
    box.reporter.report_now()
    current_outbox.registry.clear()
    assert finding_of(box, "handlers").level == PROBLEM
    outbox.handler("user.*", name="mail")(lambda event: None)
    outbox.ignore("order.*")
    box.reporter.report_now()
    current_outbox.registry.clear()
    assert finding_of(box, "handlers").level == OK


def test_handlers_that_are_registered_here_count(box: Outbox) -> None:
    emit(1, "order.placed")
    outbox.handler("user.*", name="mail")(lambda event: None)
    assert finding_of(box, "handlers").level == PROBLEM
    outbox.handler("order.*", name="billing")(lambda event: None)
    assert finding_of(box, "handlers").level == OK


@pytest.fixture
def unhandled(box: Outbox) -> Outbox:
    """Return an Outbox whose events were claimed by a worker that has no destination for them."""
    outbox.handler("user.*", name="mail")(lambda event: None)
    emit(2, "order.placed")
    box.process_pending_events()
    current_outbox.registry.clear()
    outbox.handler("*", name="everything")(lambda event: None)
    return box


def test_claimed_events_that_no_destination_wanted_are_a_problem_until_they_are_delivered(unhandled: Outbox) -> None:
    found = finding_of(unhandled, "handlers")
    assert (found.level, "that no destination wants" in found.what) == (PROBLEM, True)
    assert "2 of the type 'order.placed'" in found.what
    let_pass(hours=1)
    unhandled.process_pending_events()
    assert finding_of(unhandled, "handlers").level == OK


def test_events_that_wait_for_a_destination_that_a_worker_lacks_are_a_problem(box: Outbox) -> None:
    outbox.handler("*", name="everything")(lambda event: None)

    @outbox.handler("*", name="billing")
    def refuse(event: outbox.Event) -> None:
        raise outbox.RetryLater(60)

    emit(1)
    box.process_pending_events()
    assert finding_of(box, "handlers").level == OK
    current_outbox.registry.clear()
    outbox.handler("*", name="everything")(lambda event: None)
    let_pass(hours=1)
    box.process_pending_events()
    found = finding_of(box, "handlers")
    assert found.level == PROBLEM
    assert "wait for the destination 'billing', which a worker did not have" in found.what
    assert "name='billing'" in advice_of(found)
