"""What the doctor finds out about the order per key."""

import pytest

from outbox.admin.doctor.check import OK, PROBLEM, WARNING
from outbox.core import Outbox
from outbox.telemetry.process_reports import WORKER
from tests.admin.doctor.findings import advice_of, commands_in, finding_of, findings_of
from tests.admin.doctor.published_processes import publish_process
from tests.support.blocked_keys import Crm, block, keyed, run
from tests.support.table import emit, let_pass


@pytest.fixture
def crm(box: Outbox) -> Crm:
    return Crm()


class TestBlockedKeys:
    def test_without_any_all_is_well(self, box: Outbox, crm: Crm) -> None:
        assert (finding_of(box, "keys").level, finding_of(box, "keys").what) == (OK, "No ordering key is blocked.")

    def test_a_key_behind_a_failed_event_is_a_problem_with_the_commands_that_go_on(self, box: Outbox, crm: Crm) -> None:
        head, *_ = block(box, crm)
        (found,) = findings_of(box, "keys")
        assert found.level == PROBLEM
        assert f"The key k is blocked at crm: 2 events wait behind {head.id} (order.placed)" in found.what
        assert "no such customer" in found.what
        assert commands_in(found) == [f"outbox retry {head.id}", f"outbox skip {head.id}"]

    def test_a_key_behind_an_event_that_is_tried_again_is_a_warning_after_a_while(self, box: Outbox, crm: Crm) -> None:
        head, *_ = block(box, crm, failed=False)
        assert finding_of(box, "keys", blocked_seconds=60.0).level == OK
        (found,) = findings_of(box, "keys", blocked_seconds=0.0)
        assert (found.level, "next attempt in" in found.what) == (WARNING, True)
        assert f"outbox show {head.id}" in commands_in(found)

    def test_many_are_summed_up(self, box: Outbox, crm: Crm) -> None:
        for number in range(8):
            block(box, crm, key=f"key {number}")
        found = findings_of(box, "keys")
        assert len(found) == 4
        assert any("At least 5 more keys are blocked; 8 in all" in each.what for each in found)

    def test_the_backlog_and_the_leases_don_t_report_events_that_wait(self, box: Outbox, crm: Crm) -> None:
        block(box, crm)
        let_pass(hours=5)
        for check in ("backlog", "leases", "handlers"):
            assert finding_of(box, check).level == OK, check


class TestOldWorkers:
    def test_a_worker_that_keeps_no_order_is_a_problem_if_keyed_events_wait(self, box: Outbox, crm: Crm) -> None:
        publish_process(box, pid=1)
        publish_process(box, pid=2, keeps_order=True)
        emit(1)
        assert finding_of(box, "order").level == OK
        keyed("1")
        (found,) = findings_of(box, "order")
        assert (found.level, "alpha:1 runs a version" in found.what) == (PROBLEM, True)
        assert "Stop alpha:1" in advice_of(found)

    def test_also_if_they_wait_behind_a_failed_one(self, box: Outbox, crm: Crm) -> None:
        publish_process(box, pid=1)
        block(box, crm)
        assert finding_of(box, "order").level == PROBLEM

    def test_keyed_events_that_have_ended_don_t_matter(self, box: Outbox, crm: Crm) -> None:
        publish_process(box, pid=1)
        keyed("1", "2")
        run(box)
        assert finding_of(box, "order").level == OK

    def test_a_worker_of_this_version_keeps_the_order(self, box: Outbox, crm: Crm) -> None:
        box.reporter.kind = WORKER
        box.reporter.report_now()
        keyed("1")
        assert finding_of(box, "order").what == "All workers keep the order of ordering keys."
