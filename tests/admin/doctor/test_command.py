"""The command `outbox doctor`: output, exit codes, and how it runs the checks."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import outbox
from outbox import current_outbox
from outbox.admin.doctor.check import (
    LEVELS,
    NOTE,
    OK,
    PROBLEM,
    WARNING,
    Check,
    Context,
    Finding,
    note,
    ok,
    problem,
    warning,
)
from outbox.admin.doctor.run_checks import CHECKS, run_checks, secrets_of, worst
from outbox.cli import cli
from outbox.cli.doctor import EXIT_CODES, as_text
from outbox.core import Outbox
from outbox.settings import Settings
from outbox.telemetry.process_reports import UP
from outbox.webhooks.redaction import HIDDEN
from tests.admin.doctor.findings import finding_of
from tests.admin.doctor.published_processes import publish_process
from tests.conftest import Configure
from tests.support.processes import MakeStage
from tests.support.program import BIN, run
from tests.support.servers import RedisServer, free_port
from tests.support.table import becomes_true, emit

HANDLERS = """
import outbox

@outbox.handler("order.*", name="billing")
def bill(event):
    pass
"""


def run_here(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["doctor", *arguments])


@pytest.fixture
def healthy(configure: Configure) -> Outbox:
    box = configure(publish_seconds=10)
    publish_process(box, UP)
    return box


def test_where_all_is_well_it_says_so_and_exits_with_0(healthy: Outbox) -> None:
    done = run_here()
    assert (done.exit_code, done.output.endswith("\n\nAll is well.\n")) == (0, True)
    assert set(re.findall(r"^(\w+)", done.output, re.MULTILINE)) <= {OK, NOTE, "All"}


def test_every_check_for_this_database_reports_a_finding(healthy: Outbox) -> None:
    told = {each["check"] for each in json.loads(run_here("--json").stdout)["findings"]}
    about_redis = {"eviction", "persistence", "memory"}  # of which there is none
    assert told == {each.name for each in CHECKS if each.only_on in (None, healthy.dialect.name)} - about_redis


def test_warnings_exit_with_1_and_come_last_with_what_to_do_below_them(healthy: Outbox) -> None:
    outbox.handler("*", name="billing")(_reject)
    emit(1)
    healthy.process_pending_events()
    current_outbox.registry.clear()
    done = run_here()
    *_, what, advice, empty, summary = done.output.splitlines()
    assert done.exit_code == 1
    assert re.match(r"warning  failed +1 event has failed", what)
    assert re.match(r" {20,}→ Run `outbox list --status failed`", advice)
    assert (empty, summary) == ("", "1 warning: 1 event has failed.")


def _reject(event: outbox.Event) -> None:
    raise outbox.Reject("no such\x1b[31m account")


def test_control_characters_in_errors_are_not_printed(healthy: Outbox) -> None:
    outbox.handler("*", name="billing")(_reject)
    emit(1)
    healthy.process_pending_events()
    assert "\x1b" not in run_here().output


def test_problems_exit_with_2(configure: Configure) -> None:
    configure(publish_seconds=10)
    done = run_here()
    assert (done.exit_code, done.output.splitlines()[-1]) == (
        2,
        "2 problems: no worker is running; no scheduler is running.",
    )


def test_programs_get_json(configure: Configure) -> None:
    configure(publish_seconds=10)
    done = run_here("--json")
    found = json.loads(done.stdout)
    assert (done.exit_code, found["level"]) == (2, PROBLEM)
    assert found["verdict"] == "2 problems: no worker is running; no scheduler is running."
    assert all(set(each) == {"check", "level", "what", "advice", "brief"} for each in found["findings"])
    assert {each["level"] for each in found["findings"]} <= set(LEVELS)


@pytest.mark.parametrize(
    ("levels", "expected"),
    [([], OK), ([OK, NOTE], NOTE), ([WARNING, OK], WARNING), ([PROBLEM, WARNING, OK], PROBLEM)],
)
def test_the_worst_finding_decides(levels: list[str], expected: str) -> None:
    assert worst(Finding(level, "") for level in levels) == expected
    assert EXIT_CODES[expected] == {OK: 0, NOTE: 0, WARNING: 1, PROBLEM: 2}[expected]


def test_long_findings_are_wrapped_on_a_terminal() -> None:
    found = [ok("fine"), note("worth " * 30), warning("bad " * 30, "do " * 40), problem("worse", "hurry")]
    text = as_text([replace(each, check="check") for each in found], 60, margin=16, verdict="1 problem. 1 warning.")
    assert max(map(len, text.splitlines())) <= 60 + len("\x1b[32m\x1b[0m")
    assert text.endswith("1 problem. 1 warning.")


def test_a_module_brings_its_handlers_and_its_database(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(HANDLERS)
    settings = {"database_url": f"sqlite:///{tmp_path / 'shop.db'}"}
    assert run(BIN / "outbox", "init", cwd=tmp_path, **settings).returncode == 0
    done = run(BIN / "outbox", "doctor", "-m", "shop", "--thorough", cwd=tmp_path, **settings)
    assert done.returncode == 2
    assert "have the same destinations: billing" in done.stdout
    assert "The file is intact" in done.stdout
    assert "no worker" in done.stdout.lower()


@pytest.mark.parametrize("settings", [{"batch_size": "many"}, {"dispatch": "nowhere"}])
def test_an_error_before_the_first_check_is_one_line(tmp_path: Path, settings: dict[str, Any]) -> None:
    done = run(BIN / "outbox", "doctor", cwd=tmp_path, **settings)
    assert (done.returncode, done.stdout.count("\n")) == (2, 1)
    assert done.stdout.startswith("outbox: ")


def test_a_database_that_is_down_is_a_finding_not_a_traceback(tmp_path: Path) -> None:
    done = run(BIN / "outbox", "doctor", cwd=tmp_path, database_url=f"postgresql://127.0.0.1:{free_port()}/none")
    assert done.returncode == 2
    assert "Traceback" not in done.stdout
    assert "Start the database" in done.stdout


def test_a_check_that_raises_is_a_finding_and_the_others_still_run(box: Outbox) -> None:
    def breaks(context: Context) -> Any:
        yield ok("so far")
        raise ZeroDivisionError("of all\nthings")

    checks = [Check("broken", breaks), Check("needing", breaks, ("broken",)), CHECKS[1]]
    found = run_checks(box, checks=checks)
    assert [(each.check, each.level) for each in found] == [
        ("broken", OK),
        ("broken", PROBLEM),
        ("database", OK),
        ("broken", NOTE),
    ]
    assert found[1].what == "The check failed: ZeroDivisionError: of all things"
    assert found[-1].what.endswith(": needing.")


# Secrets


def test_no_secret_is_printed_even_if_an_error_contains_it() -> None:
    settings = Settings(
        dispatch="off",
        database_url="postgresql://app:database%20word@127.0.0.1:1/none",
        redis_url="redis://:redis-word@127.0.0.1:1/0",
        webhook_url="https://example.com/hook-word",
        webhook_secret=outbox.webhooks.new_secret(),
        dashboard_password="dashboard-word",
    )
    box = Outbox(settings)
    secrets = ["database%20word", "database word", "redis-word", "hook-word", str(settings.webhook_secret)]
    secrets += ["dashboard-word"]

    def tells(context: Context) -> Any:
        yield problem(repr({name: getattr(settings, name) for name in Settings.__slots__}), " ".join(secrets_of(box)))
        raise RuntimeError(" ".join(secrets_of(box)))

    told = repr(run_checks(box, checks=[*CHECKS, Check("telling", tells)]))
    assert HIDDEN in told
    assert [secret for secret in secrets if secret in told] == []


def test_the_password_of_a_database_that_the_application_opened_is_a_secret(postgres_url: str) -> None:
    box = Outbox(Settings(database_url=postgres_url.replace("p%40ss", "long%40word"), dispatch="off"))
    other = Outbox(Settings(dispatch="off"), database=box.database)
    assert "long@word" in list(secrets_of(other))


# Everything at once, for real


def test_a_deployment_that_runs_is_well_and_one_whose_processes_are_killed_is_not(
    make_stage: MakeStage, tmp_path: Path
) -> None:
    with RedisServer(appendonly="yes") as redis:
        stage = make_stage(redis_url=redis.url, lease_seconds=30, max_run_seconds=300, publish_seconds=1)
        programs = [stage.worker(), stage.scheduler()]
        becomes_true(lambda: {finding_of(stage.box, each).level for each in ("workers", "scheduler")} == {OK})
        well = stage.start("doctor", BIN / "outbox", "doctor", "-m", "tests.apps.ledger")
        assert (well.wait(), well.said().splitlines()[-1]) == (0, "All is well.")
        assert "have the same destinations: " in well.said()
        assert "A worker took a sweep." in well.said()
        for program in programs:
            program.kill()
        becomes_true(lambda: {finding_of(stage.box, each).level for each in ("workers", "scheduler")} == {PROBLEM})
        ill = stage.start("doctor", BIN / "outbox", "doctor")
        assert ill.wait() == 2
        assert "No worker is running" in ill.said()
        assert f":{programs[1].pid} last reported" in ill.said()
        assert "Traceback" not in ill.said()
