"""`outbox periodic`: what it lists, and what it changes."""

import json
import re
from datetime import timedelta

import dramatiq
import dramatiq.broker
import pytest
from dramatiq.brokers.stub import StubBroker

import outbox
from outbox.core import Outbox
from outbox.storage.models import OutboxEvent
from outbox.telemetry import audit
from tests.cli.conftest import Command
from tests.support.periodic import change_job, declare, declared, let_job_age, runs, scheduler


def row_of(output: str, name: str = "job") -> list[str]:
    """The cells of a job's line."""
    (line,) = [line for line in output.splitlines() if line.startswith(f"{name} ")]
    return re.split(r"\s{2,}", line)


def test_without_jobs_it_says_so(command: Command) -> None:
    assert command("periodic").output == "No scheduler has declared any periodic job yet.\n"
    assert json.loads(command("periodic", "--json").output) == []


def test_it_lists_schedule_last_run_outcome_and_next_run_in_both_times(box: Outbox, command: Command) -> None:
    declare(cron="0 3 * * *", timezone="Europe/Berlin")
    tick = scheduler(box)
    tick()
    job = declared(box)
    head, _ = command("periodic").output.splitlines()
    assert re.split(r"\s{2,}", head) == [
        "NAME", "KIND", "SCHEDULE", "STATE", "LAST RUN (UTC)", "NEXT RUN (UTC)", "NEXT RUN, LOCAL", "OUTCOME",
    ]  # fmt: skip
    cells = row_of(command("periodic").output)
    assert cells[:4] == ["job", "function", "at 03:00 every day", "scheduled"]
    assert cells[-1] == "never ran"
    assert cells[-3] == f"{job.next_run_at:%Y-%m-%d %H:%M:%S}"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d 03:00:00 CES?T", cells[-2])
    let_job_age(box, days=1)
    tick()
    assert row_of(command("periodic").output)[-1] == "waits for a worker"
    box.process_pending_events()
    assert re.fullmatch(r"succeeded in \d+ ms", row_of(command("periodic").output)[-1])
    (data,) = json.loads(command("periodic", "--json").output)
    assert data["last_run_id"] == str(runs(box)[0].id)
    assert (data["name"], data["paused"], data["timezone"]) == ("job", False, "Europe/Berlin")
    assert data["seconds"] >= 0
    OutboxEvent.delete().execute()
    assert row_of(command("periodic").output)[-1].startswith("succeeded in")


def test_it_shows_why_a_run_failed_and_when_it_is_tried_again(box: Outbox, command: Command) -> None:
    @outbox.periodic(hours=1, name="job")
    def job(run: outbox.Run) -> None:
        raise ValueError("no rates") if run.attempt == 1 else outbox.Reject("none at all")

    tick = scheduler(box)
    tick()
    command("periodic", "run", "job")
    tick()
    box.process_pending_events()
    assert "waits for its next attempt at" in command("periodic").output
    assert "no rates" in command("periodic").output
    OutboxEvent.update(next_attempt_at=None, status="failed").execute()
    assert "failed: ValueError: no rates" in command("periodic").output


def test_it_shows_what_was_skipped(box: Outbox, command: Command) -> None:
    declare(overlap="skip")
    tick = scheduler(box)
    tick()
    for _ in range(2):
        let_job_age(box, hours=1)
        tick()
    assert "was skipped: the run before it had not ended" in command("periodic").output


def test_of_an_actor_it_shows_when_it_was_enqueued(
    box: Outbox, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dramatiq.broker, "global_broker", StubBroker())
    outbox.periodic(hours=1)(dramatiq.actor(actor_name="job")(lambda: None))
    tick = scheduler(box)
    tick()
    command("periodic", "run", "job")
    tick()
    assert row_of(command("periodic").output)[-1] == "waits to be enqueued"
    OutboxEvent.update(next_attempt_at=None, status="delivered", delivered_at=declared(box).seen_at).execute()
    assert row_of(command("periodic").output)[-1] == f"enqueued at {declared(box).seen_at:%Y-%m-%d %H:%M:%S}"


def test_pause_resume_and_run_say_what_they_do_and_are_in_the_audit_log(box: Outbox, command: Command) -> None:
    declare()
    scheduler(box)()
    assert command("periodic", "pause", "job").output.startswith("job is paused")
    assert declared(box).paused
    assert row_of(command("periodic").output)[3] == "paused"
    assert command("periodic", "pause", "job").output == "job is paused already.\n"
    assert command("periodic", "resume", "job").output.startswith("job is resumed")
    assert not declared(box).paused
    assert command("periodic", "resume", "job").output == "job is not paused.\n"
    assert command("periodic", "run", "job").output.startswith("job will run as soon as")
    assert declared(box).requested_at is not None
    entries = [(entry.action, entry.filters) for entry in audit.latest(box.dialect)]
    assert entries == [(f"{action} periodic", {"periodic": "job"}) for action in ("run", "resume", "pause")]
    assert all("@" in entry.who and entry.ended_at is not None for entry in audit.latest(box.dialect))


@pytest.mark.parametrize("action", ["run", "pause", "resume", "forget"])
def test_an_unknown_name_is_an_error_that_names_the_known_ones(box: Outbox, command: Command, action: str) -> None:
    with pytest.raises(outbox.RegistrationError, match="No scheduler has declared any yet"):
        command("periodic", action, "jobs")
    declare()
    scheduler(box)()
    with pytest.raises(outbox.RegistrationError, match=r"There is no periodic job called 'jobs'\. There are: job"):
        command("periodic", action, "jobs")
    assert audit.latest(box.dialect) == []


def test_a_job_is_forgotten_only_if_no_scheduler_has_it(box: Outbox, command: Command) -> None:
    declare()
    scheduler(box)()
    with pytest.raises(outbox.RegistrationError, match="A running scheduler has the periodic job 'job'"):
        command("periodic", "forget", "job")
    change_job(box, seen_at=declared(box).seen_at - timedelta(minutes=2))
    cells = row_of(command("periodic").output)
    assert cells[3] == "no scheduler has it"
    assert command("periodic", "forget", "job").output.startswith("job is forgotten")
    assert "No scheduler has declared" in command("periodic").output
