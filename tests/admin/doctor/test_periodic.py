"""The doctor's check that periodic jobs run."""

import re
from datetime import timedelta

from outbox.admin.doctor.check import OK, PROBLEM, WARNING
from outbox.core import Outbox
from outbox.operations import periodic_jobs
from outbox.operations.periodic_jobs import PAUSE, RUN_NOW
from outbox.telemetry.audit import Operator
from tests.admin.doctor.findings import commands_in, finding_of
from tests.support.periodic import change_job, declare, declared, scheduler
from tests.support.table import let_pass


def test_without_jobs_all_is_well(box: Outbox) -> None:
    assert finding_of(box, "periodic").what == "No periodic job is declared."


def test_a_scheduled_job_is_fine(box: Outbox) -> None:
    declare()
    scheduler(box)()
    found = finding_of(box, "periodic")
    assert (found.level, found.what) == (OK, "1 periodic jobs: 1 are scheduled, 0 are paused.")


def test_a_job_that_no_scheduler_has_is_a_warning(box: Outbox) -> None:
    declare()
    scheduler(box)()
    change_job(box, seen_at=declared(box).seen_at - timedelta(minutes=2))
    found = finding_of(box, "periodic")
    assert (found.level, found.what) == (WARNING, "No running scheduler has the periodic job job.")
    assert commands_in(found) == ["outbox scheduler your.module", "outbox periodic forget NAME"]


def test_a_job_that_is_overdue_is_a_problem(box: Outbox) -> None:
    declare()
    scheduler(box)()
    now = declared(box).seen_at
    change_job(box, next_run_at=now - timedelta(minutes=4))
    assert finding_of(box, "periodic").level == OK
    change_job(box, next_run_at=now - timedelta(minutes=6))
    found = finding_of(box, "periodic")
    assert found.level == PROBLEM
    assert re.search(r"should have run 6 min( \d+ s)? ago: a scheduler has it, but could not store its run", found.what)
    change_job(box, seen_at=now - timedelta(minutes=6))
    assert "no running scheduler has it" in finding_of(box, "periodic").what


def test_a_paused_job_is_fine(box: Outbox) -> None:
    declare()
    scheduler(box)()
    periodic_jobs.apply(box.dialect, PAUSE, "job", operator=Operator("someone"))
    change_job(box, next_run_at=declared(box).seen_at - timedelta(days=6))
    change_job(box, seen_at=declared(box).seen_at - timedelta(days=6))
    assert finding_of(box, "periodic").level == OK


def test_a_run_that_waits_for_a_worker_with_its_function_is_a_problem_and_no_event(box: Outbox) -> None:
    declare()
    tick = scheduler(box)
    tick()
    periodic_jobs.apply(box.dialect, RUN_NOW, "job", operator=Operator("someone"))
    tick()
    assert finding_of(box, "handlers").level == OK
    other = Outbox(box.settings, database=box.database)
    other.is_worker = True
    other.process_pending_events()
    found = finding_of(box, "handlers")
    assert (found.level, "1 run of the periodic job 'job' waits: " in found.what) == (PROBLEM, True)
    let_pass(hours=1)
    box.process_pending_events()
    assert finding_of(box, "handlers").level == OK
