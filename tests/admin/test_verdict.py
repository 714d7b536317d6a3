"""The verdict: what is wrong, in one sentence, the same for `outbox status`, the dashboard and the doctor."""

import json
from dataclasses import replace
from datetime import timedelta

from click.testing import CliRunner

import outbox
from outbox.admin.doctor.check import NOTE, OK, PROBLEM, WARNING, Finding
from outbox.admin.doctor.run_checks import CHECKS, run_checks
from outbox.admin.overview import overview
from outbox.admin.verdict import find, verdict_on
from outbox.admin.web import make_app
from outbox.cli import cli
from outbox.core import Outbox
from outbox.destinations.controls import EVERYTHING, Pause
from outbox.operations import controls
from outbox.telemetry.audit import Operator
from outbox.telemetry.process_reports import UP
from tests.admin.doctor.published_processes import publish_process
from tests.admin.web.client import Client, anybody
from tests.conftest import Configure
from tests.support.table import emit, let_pass, statements


def sentence(box: Outbox) -> str:
    return verdict_on(find(box, overview(box.dialect))).sentence


def fail(count: int) -> None:
    @outbox.handler("order.placed", name="billing")
    def refuse(event: outbox.Event) -> None:
        raise outbox.Reject("no such account")

    emit(count)
    outbox.current().process_pending_events(count)
    outbox.current().registry.clear()


def test_where_nothing_is_wrong_all_is_well(configure: Configure) -> None:
    box = configure(publish_seconds=10)
    publish_process(box, UP)
    assert sentence(box) == "All is well."


def test_failed_events_are_never_well(configure: Configure) -> None:
    box = configure(publish_seconds=10)
    publish_process(box, UP)
    fail(3)
    assert sentence(box) == "1 warning: 3 events have failed."


def test_says_what_is_wrong_the_worst_first(configure: Configure) -> None:
    box = configure(publish_seconds=10)
    fail(2)
    emit(4)
    let_pass(hours=1)  # that they are late is no finding of its own, as no worker runs
    assert sentence(box) == (
        "2 problems: no worker is running, 4 events wait; no scheduler is running. 1 warning: 2 events have failed."
    )


def test_a_pause_is_told_and_after_an_hour_it_is_a_warning(configure: Configure) -> None:
    box = configure(publish_seconds=10)
    publish_process(box, UP)
    controls.pause(box.dialect, EVERYTHING, operator=Operator("alice"), reason="deploy")
    view = overview(box.dialect)
    assert verdict_on(find(box, view)).sentence.startswith("All is well; everything is paused for ")
    long_ago = Pause(view.now - timedelta(hours=2), by="alice")
    view = replace(view, controls=view.controls.with_pause(EVERYTHING, long_ago, view.now))
    assert verdict_on(find(box, view)).sentence == "1 warning: everything is paused for 2 h by alice."


def test_three_findings_are_named_and_the_others_counted() -> None:
    found = [Finding(PROBLEM, f"{n}.", brief=f"{n}") for n in range(5)]
    assert verdict_on(found).sentence == "5 problems: 0; 1; 2; and 2 more."


def test_what_two_checks_say_counts_once_and_what_is_fine_not_at_all() -> None:
    twice = [Finding(WARNING, "It is late.", brief="it is late")] * 2
    verdict = verdict_on([*twice, Finding(OK, "fine", brief="fine"), Finding(NOTE, "noted", brief="noted")])
    assert (verdict.level, verdict.sentence) == (WARNING, "1 warning: it is late.")


def test_the_three_tools_agree(configure: Configure) -> None:
    box = configure(publish_seconds=10)
    fail(3)
    emit(1)
    expected = sentence(box)
    page = Client(make_app(box, authenticate=anybody)).get("/").text
    status, doctor, data = (
        CliRunner().invoke(cli, words).output for words in (["status"], ["doctor"], ["status", "--json"])
    )
    assert expected in page
    assert status.splitlines()[0] == expected
    assert doctor.splitlines()[-1] == expected
    assert json.loads(data)["verdict"] == expected


def test_the_checks_of_all_tools_need_nothing_but_the_overview(configure: Configure) -> None:
    box = configure(publish_seconds=10)
    emit(3)
    view = overview(box.dialect)
    checks = [check for check in CHECKS if check.everywhere]
    with statements(box.database) as seen:
        assert run_checks(box, checks=checks, view=view)
    assert seen == []
