"""What commands write to the audit, and `outbox audit`, which reads it."""

import json
import os
import pwd
import signal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from outbox.cli.operator import claimed_name, user_name
from outbox.core import Outbox
from outbox.storage.models import DELIVERED, FAILED
from outbox.telemetry import audit
from tests.support.processes import Program
from tests.support.program import BIN, environment, run
from tests.support.table import becomes_true, change, emit, let_pass, statuses

ME = pwd.getpwuid(os.getuid()).pw_name


def last(box: Outbox) -> Any:
    return audit.latest(box.dialect)[0]


def ended(count: int) -> list[Any]:
    events = emit(count)
    change(*events, status=FAILED, next_attempt_at=None)
    return events


# Who it was


def test_the_operating_systems_user_is_the_operator_whatever_the_environment_says(
    url: str, box: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(variable, "somebody-else")
    monkeypatch.delenv("SUDO_USER", raising=False)
    emit(1)
    assert run(BIN / "outbox", "fail", "--all", "--yes", database_url=url).returncode == 0
    assert last(box).who.startswith(f"{ME}@")
    assert (last(box).claimed, last(box).via) == ("somebody-else", "command line")


def test_a_user_without_any_name_in_the_environment_is_known_as_well(
    url: str, box: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME", "SUDO_USER"):
        monkeypatch.delenv(variable, raising=False)
    emit(1)
    assert run(BIN / "outbox", "fail", "--all", "--yes", database_url=url).returncode == 0
    assert (last(box).who.partition("@")[0], last(box).claimed) == (ME, None)


def test_a_user_without_a_name_has_a_number() -> None:
    unknown = max(each.pw_uid for each in pwd.getpwall()) - 1
    while any(each.pw_uid == unknown for each in pwd.getpwall()):
        unknown -= 1
    assert user_name(unknown) == f"uid {unknown}"
    assert user_name(os.getuid()) == ME


@pytest.mark.parametrize(
    ("environ", "claimed"),
    [
        ({"SUDO_USER": "ada", "LOGNAME": "root"}, "ada"),
        ({"LOGNAME": "root", "USER": "grace"}, "grace"),
        ({"LOGNAME": "root", "USER": "root"}, None),
        ({"LOGNAME": " "}, None),
        ({}, None),
    ],
)
def test_a_claim_is_a_name_that_differs(environ: dict[str, str], claimed: str | None) -> None:
    assert claimed_name("root", environ) == claimed


# What was given


@pytest.mark.parametrize(
    ("command", "filters", "parameters"),
    [
        (
            ["fail", "--type", "order.placed", "--reason", "no more"],
            {"event_type": "order.placed"},
            {"reason": "no more"},
        ),
        (["fail", "--all", "--limit", "2"], {}, {"limit": 2}),
        (["fail", "--all", "--per-second", "1000"], {}, {"per_second": 1000.0}),
        (["fail", "--all"], {}, None),
    ],
)
def test_every_parameter_is_in_the_entry(
    url: str, box: Outbox, command: list[str], filters: dict[str, Any], parameters: dict[str, Any] | None
) -> None:
    emit(3, tenant_id="acme")
    done = run(BIN / "outbox", *command, "--yes", database_url=url)
    assert done.returncode == 0, done.stdout
    assert (last(box).filters, last(box).parameters) == (filters, parameters)


def test_the_destination_of_a_replay_is_in_the_entry(url: str, box: Outbox, tmp_path: Path) -> None:
    (tmp_path / "crm_handlers.py").write_text("import outbox\noutbox.handler('*', name='crm')(print)\n")
    change(*emit(2), status=DELIVERED, next_attempt_at=None, delivered_at=box.dialect.now())
    command = ["replay", "--all", "--to", "crm", "--yes", "-m", "crm_handlers"]
    done = run(BIN / "outbox", *command, database_url=url, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert (last(box).action, last(box).parameters, last(box).affected) == ("replay", {"to": "crm"}, 2)


# The log, and cleaning up by hand


def test_a_command_writes_the_audits_lines_to_standard_error(url: str, box: Outbox) -> None:
    ended(2)
    done = run(BIN / "outbox", "delete", "--kind", "event", "--yes", database_url=url, log_format="json")
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    found = [line for line in lines if line["logger"] == "outbox.audit"]
    assert [(line["action"], line["who"].partition("@")[0]) for line in found] == [("delete", ME)] * 2
    assert (found[1]["outcome"], found[1]["affected"]) == ("done", 2)


def test_cleaning_up_by_hand_is_audited_with_the_ids(url: str, box: Outbox) -> None:
    events = emit(3)
    change(*events, status=DELIVERED, next_attempt_at=None, delivered_at=box.dialect.now())
    let_pass(hours=2)
    done = run(BIN / "outbox", "cleanup", "--retention-hours", "0", "--yes", database_url=url)
    assert "3 events and 0 inbox messages were deleted." in done.stdout
    entry = last(box)
    assert (entry.action, entry.parameters, entry.outcome) == ("cleanup", {"retention_hours": 0.0}, "done")
    assert set(audit.changed_ids(box.dialect, entry.id)) == {event.id for event in events}


def test_cleaning_up_by_the_scheduler_is_not_the_operators(box: Outbox) -> None:
    ended(1)
    let_pass(hours=2)
    assert box.cleanup_delivered_events(0)["deleted"] == 1
    assert audit.latest(box.dialect) == []


def test_a_second_signal_ends_a_command_that_waits_for_its_rate(url: str, box: Outbox, tmp_path: Path) -> None:
    """A signal ends the pause between two batches as well."""
    emit(5)
    command: list[str | Path] = [BIN / "outbox", "fail", "--all", "--yes", "--per-second", "0.001"]
    program = Program(command, environment(database_url=url), tmp_path / "output")
    try:
        becomes_true(lambda: statuses()[FAILED] == 1)
        program.signal(signal.SIGTERM)
        assert program.wait() == 143
    finally:
        program.kill()
    assert (last(box).outcome, last(box).cause) == ("interrupted", "SIGTERM")


# Reading it


def test_it_lists_what_operators_did(url: str, box: Outbox) -> None:
    assert "No operator has done anything yet." in run(BIN / "outbox", "audit", database_url=url).stdout
    ended(2)
    run(BIN / "outbox", "delete", "--all", "--limit", "1", "--yes", database_url=url)
    listed = run(BIN / "outbox", "audit", database_url=url).stdout
    assert all(text in listed for text in (ME, "command line", "delete", "done", '{"limit": 1}'))
    (entry,) = json.loads(run(BIN / "outbox", "audit", "--json", database_url=url).stdout)
    assert (entry["action"], entry["affected"], entry["parameters"]) == ("delete", 1, {"limit": 1})


def test_it_prints_the_ids_of_one_action(url: str, box: Outbox) -> None:
    events = ended(3)
    run(BIN / "outbox", "delete", "--kind", "event", "--yes", database_url=url)
    id = str(last(box).id)
    printed = run(BIN / "outbox", "audit", id, database_url=url)
    assert printed.stdout.split() == [str(event.id) for event in events]
    data = json.loads(run(BIN / "outbox", "audit", id, "--json", database_url=url).stdout)
    assert data["ids"] == [str(event.id) for event in events]


def test_an_entry_that_does_not_exist_says_so(url: str, box: Outbox) -> None:
    done = run(BIN / "outbox", "audit", str(uuid4()), database_url=url)
    assert (done.returncode, "There is no audit entry" in done.stdout) == (1, True)
