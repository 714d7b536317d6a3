"""The operator's commands: what they print, what they change, and how they end."""

import json
import re
import shlex
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import outbox
from outbox import current_outbox
from outbox.cli import cli
from outbox.cli.operator import operator
from outbox.core import Outbox
from outbox.operations import actions, apply_action
from outbox.operations.filters import Filter
from outbox.storage.models import DELIVERED, FAILED, PENDING, OutboxEvent
from outbox.telemetry import audit
from outbox.telemetry.audit import Interrupted, Operator
from outbox.telemetry.process_reports import WORKER
from tests.admin.doctor.published_processes import publish_process
from tests.cli.conftest import Command
from tests.conftest import Configure
from tests.support.processes import Program
from tests.support.program import BIN, environment, run, run_python
from tests.support.recorded_destinations import let_records_age
from tests.support.table import (
    becomes_true,
    change,
    claimed,
    emit,
    emit_one,
    ids,
    let_pass,
    other_worker,
    statuses,
    stored,
)


def fail_all(box: Outbox, count: int = 1, event_type: str = "order.placed", **fields: Any) -> list[OutboxEvent]:
    """Failed events, by a handler that is gone afterwards."""

    @outbox.handler("*", name="runner")
    def refuse(event: outbox.Event) -> None:
        raise outbox.Reject("HTTP 500")

    events = emit(count, event_type, **fields)
    box.process_pending_events(count)
    current_outbox.registry.clear()
    return events


class TestList:
    def test_is_a_table_newest_first(self, box: Outbox, command: Command) -> None:
        (failed,) = fail_all(box)
        pending = emit_one("user.created", aggregate_type="User", aggregate_id="7")
        lines = command("list").output.splitlines()
        assert lines[0].split() == ["ID", "CREATED", "(UTC)", "STATUS", "KIND", "TYPE", "AGGREGATE", "TRIES", "ERROR"]
        assert [line.split()[0] for line in lines[1:]] == [str(pending.id), str(failed.id)]
        assert "pending  event  user.created  User:7" in lines[1]
        assert lines[2].endswith("runner: Reject: HTTP 500")

    def test_is_narrowed_by_filters(self, box: Outbox, command: Command) -> None:
        (failed,) = fail_all(box, tenant_id="acme")
        emit(2, "user.created", aggregate_type="User")
        for arguments, expected in (
            (("--status", "failed"), [failed]),
            (("--type", "order.placed"), [failed]),
            (("--aggregate", "Order:0"), [failed]),
            (("--aggregate", "Order"), [failed]),
            (("--aggregate", "Order:1"), []),
            (("--tenant", "acme"), [failed]),
            (("--destination", "runner"), [failed]),
            (("--error", "500"), [failed]),
            (("--key", failed.idempotency_key), [failed]),
            (("--older-than", "1h"), []),
            (("--newer-than", "1h", "--status", "failed"), [failed]),
            (("--since", "2020-01-01", "--until", "2020-01-02T10:00+02:00"), []),
        ):
            listed = json.loads(command("list", "--json", *arguments).output)
            assert [event["id"] for event in listed["events"]] == [str(each.id) for each in expected], arguments

    def test_after_lists_older_events(self, command: Command) -> None:
        events = emit(5)
        first = json.loads(command("list", "--json", "--limit", "3").output)
        rest = json.loads(command("list", "--json", "--limit", "3", "--after", first["after"]).output)
        listed = [event["id"] for event in first["events"] + rest["events"]]
        assert listed == sorted(map(str, ids(events)), reverse=True)
        assert rest["after"] is None
        assert f"For older events: --after {first['after']}" in command("list", "--limit", "3").output

    def test_says_when_nothing_matches(self, command: Command) -> None:
        result = command("list", "--status", "failed")
        assert (result.exit_code, result.output) == (0, "No events match.\n")

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("--older-than", "soon"), "'soon' is not a valid age: write 90s, 15m, 2h, 7d or 1w."),
            (("--since", "yesterday"), "'yesterday' is not a valid time: write 2026-01-31"),
            (("--since", "2026-01-01", "--newer-than", "1h"), "--since and --newer-than exclude each other"),
            (("--until", "2026-01-01", "--older-than", "1h"), "--until and --older-than exclude each other"),
            (("--after", "7"), "'7' is not an event id"),
            (("--status", "done"), "'done' is not one of 'pending', 'sending', 'delivered', 'failed'"),
        ],
    )
    def test_refuses_what_it_does_not_understand(
        self, command: Command, arguments: tuple[str, ...], message: str
    ) -> None:
        result = command("list", *arguments)
        assert result.exit_code == 2
        assert message in " ".join(result.output.split())

    def test_control_characters_of_an_error_do_not_reach_the_terminal(self, box: Outbox, command: Command) -> None:
        event = emit_one()
        change(event, error_message="red \x1b[31m\r\nnew line \u202e")
        line = command("list").output.splitlines()[1]
        assert line.endswith("red  [31m  new line")


class TestShow:
    def test_shows_everything_and_what_happens_next(self, box: Outbox, command: Command) -> None:
        (event,) = fail_all(box, payload={"total": 12}, headers={"trace": "abc"})
        output = command("show", str(event.id)).output
        assert f"id:               {event.id}\n" in output
        assert "status:           failed\n" in output
        assert f"Fix the cause, then run `outbox retry {event.id}`." in output
        assert re.search(r"runner +failed +1 +Reject: HTTP 500", output)
        assert '"total": 12' in output
        assert '"trace": "abc"' in output

    def test_is_json_for_programs(self, box: Outbox, command: Command) -> None:
        event = emit_one(payload={"total": 12})
        shown = json.loads(command("show", "--json", str(event.id)).output)
        assert (shown["id"], shown["payload"], shown["next"]) == (str(event.id), {"total": 12}, "The event is due now.")
        assert set(shown) == {*OutboxEvent._meta.sorted_field_names, "next", "waits_behind", "attempts_made"}

    @pytest.mark.parametrize("form", [(), ("--json",)])
    def test_masks_secrets_and_says_how_to_see_them(self, box: Outbox, command: Command, form: tuple[str, ...]) -> None:
        event = emit_one(payload={"card": "4711", "pwd": "hush"}, headers={"Authorization": "hush"})
        result = command("show", *form, str(event.id))
        assert "hush" not in result.output
        assert '"pwd": "•••"' in result.stdout
        assert '"card": "4711"' in result.stdout
        assert f"`outbox show --unmasked {event.id}`" in result.stderr
        assert audit.latest(box.dialect) == []

    @pytest.mark.parametrize("form", [(), ("--json",)])
    def test_unmasked_prints_all_and_the_audit_log_says_who_saw_it(
        self, box: Outbox, command: Command, form: tuple[str, ...]
    ) -> None:
        event = emit_one(payload={"pwd": "hush"}, headers={"Authorization": "quiet"})
        result = command("show", "--unmasked", *form, str(event.id))
        assert '"pwd": "hush"' in result.stdout
        assert '"Authorization": "quiet"' in result.stdout
        assert result.stderr == ""
        (entry,) = audit.latest(box.dialect)
        assert (entry.action, entry.affected, entry.filters) == ("show unmasked", 1, {"ids": [str(event.id)]})
        assert entry.who == operator().name
        assert entry.ended_at is not None

    def test_without_an_entry_in_the_audit_log_nothing_is_unmasked(
        self, box: Outbox, command: Command, capsys: pytest.CaptureFixture[str]
    ) -> None:
        event = emit_one(payload={"pwd": "hush"})
        box.database.execute_sql("DROP TABLE outbox_audit")
        with pytest.raises(outbox.OutboxError):
            command("show", "--unmasked", str(event.id))
        assert "hush" not in capsys.readouterr().out

    def test_of_an_event_without_secrets_says_nothing_of_masks(self, command: Command) -> None:
        assert command("show", str(emit_one(payload={"total": 12}).id)).stderr == ""

    @pytest.mark.parametrize("form", [(), ("--json",)])
    def test_control_characters_of_an_event_do_not_reach_the_terminal(
        self, command: Command, form: tuple[str, ...]
    ) -> None:
        nasty = "a\x1b[2K\x9b\x85\x7f\u202e\u2028b"
        event = emit_one(nasty, aggregate_id=nasty, payload={nasty: nasty}, headers={nasty: nasty})
        printed = command("show", *form, str(event.id)).output
        assert printed.replace("\n", "").isprintable()
        assert json.dumps(nasty).replace("\x7f", "\\u007f") in printed
        assert command("list", *form).output.replace("\n", "").isprintable()

    def test_json_means_the_same_with_its_escapes(self, command: Command) -> None:
        nasty = "ß\x9b\u202e\U0001f600\u2028"
        event = emit_one(nasty, payload={nasty: nasty})
        shown = json.loads(command("show", "--json", str(event.id)).output)
        assert (shown["event_type"], shown["payload"]) == (nasty, {nasty: nasty})

    def test_of_an_event_that_is_not_there_ends_with_1(self, command: Command) -> None:
        result = command("show", "01a1ec15-5f4d-7000-8f3f-35c61540423f")
        assert result.exit_code == 1
        assert "There is no event" in result.output

    def test_what_happens_next_in_every_state(self, box: Outbox, command: Command) -> None:
        def next_of(event: OutboxEvent) -> str:
            return str(json.loads(command("show", "--json", str(event.id)).output)["next"])

        event = emit_one()
        claimed(box)
        assert next_of(event).startswith("A worker is delivering the event; its lease ends in 29 s")
        let_pass(minutes=1)
        assert "its lease expired 30 s ago. The next sweep gives the event to another worker." in next_of(event)
        change(event, lease_until=None, lease_id=None, status=PENDING)
        assert next_of(event).startswith("The event has been due for 1 min")
        change(event, next_attempt_at=stored(event).updated_at.replace(year=2099))
        assert re.search(r"The next attempt is in \d+ d \(1 of 5 attempts used\)", next_of(event))
        change(event, next_attempt_at=None, delivered_at=stored(event).updated_at, status=DELIVERED)
        assert next_of(event) == "The event is delivered. It will be deleted in 6 d 23 h."


class TestRetry:
    def test_retries_one_event_by_its_id(self, box: Outbox, command: Command) -> None:
        first, second = fail_all(box, 2)
        result = command("retry", "--yes", str(first.id))
        assert (result.exit_code, result.stdout) == (0, "1 event was queued for retry.\n")
        assert (stored(first).status, stored(second).status) == (PENDING, FAILED)

    def test_asks_first_and_changes_nothing_without_a_yes(self, box: Outbox, command: Command) -> None:
        fail_all(box, 3)
        result = command("retry", "--all", input="n\n")
        assert result.exit_code == 1
        assert "3 events will be queued for retry. Continue? [y/N]" in result.output
        assert statuses() == Counter({FAILED: 3})
        assert audit.latest(box.dialect) == []
        assert command("retry", "--all", input="y\n").stdout.endswith("3 events were queued for retry.\n")
        assert statuses() == Counter({PENDING: 3})

    def test_dry_run_prints_how_many_events_match(self, box: Outbox, command: Command) -> None:
        fail_all(box, 3)
        result = command("retry", "--all", "--dry-run")
        assert (result.exit_code, result.stdout.splitlines()[0]) == (0, "3 events would be queued for retry.")
        assert statuses() == Counter({FAILED: 3})

    def test_takes_filters_and_a_limit(self, box: Outbox, command: Command) -> None:
        fail_all(box, 3, tenant_id="acme")
        fail_all(box, 2, tenant_id="other")
        assert command("retry", "-y", "--tenant", "acme", "--limit", "2").stdout == "2 events were queued for retry.\n"
        assert statuses() == Counter({FAILED: 3, PENDING: 2})

    def test_needs_ids_filters_or_all(self, box: Outbox, command: Command) -> None:
        fail_all(box)
        result = command("retry", "--yes")
        assert result.exit_code == 2
        assert "Give the ids of events, or filters, or --all." in result.output
        assert statuses() == Counter({FAILED: 1})

    def test_ends_with_1_when_nothing_matches(self, command: Command) -> None:
        emit(2)
        result = command("retry", "--all")
        assert (result.exit_code, result.stdout) == (1, "No events to be queued for retry match.\n")

    def test_is_recorded_in_the_audit_log_with_user_and_filter(self, box: Outbox, command: Command) -> None:
        fail_all(box, 2)
        command("retry", "-y", "--type", "order.placed", "--error", "500")
        (entry,) = audit.latest(box.dialect)
        assert entry.filters == {"event_type": "order.placed", "error": "500"}
        assert (entry.action, entry.affected) == ("retry", 2)
        assert "@" in entry.who


def test_fail_gives_a_reason(box: Outbox, command: Command) -> None:
    event = emit_one()
    assert command("fail", "-y", str(event.id), "--reason", "obsolete").stdout == "1 event was marked failed.\n"
    assert stored(event).error_message == "failed by an operator: obsolete"


def test_delete_deletes_what_has_ended(box: Outbox, command: Command) -> None:
    fail_all(box, 2)
    waiting = emit_one()
    assert command("delete", "-y", "--kind", "event").stdout == "2 events were deleted.\n"
    assert ids(list(OutboxEvent.select())) == [waiting.id]


@pytest.mark.parametrize(("typed", "left"), [("y", 2), ("delete", 2), ("", 2), ("delete everything", 0)])
def test_deleting_everything_must_be_typed(box: Outbox, command: Command, typed: str, left: int) -> None:
    fail_all(box, 2)
    done = command("delete", "-y", "--all", input=f"{typed}\n")
    assert OutboxEvent.select().count() == left
    assert done.exit_code == (1 if left else 0)


def test_bulk_lists_actions_with_their_progress_and_stops_and_resumes_them(box: Outbox, command: Command) -> None:
    assert command("bulk").output == "No operator has changed many events yet.\n"
    fail_all(box, 3)
    work = apply_action.apply(
        box.dialect, lambda _: None, actions.DELETE, Filter(), operator=Operator("alice"), batch_size=1
    )
    next(work)
    (running,) = json.loads(command("bulk", "--json").output)
    assert (running["state"], running["changed"], running["total"]) == ("running", 1, 3)
    assert command("bulk", "stop", running["id"]).output == "It stops after its current batch.\n"
    next(work)
    with pytest.raises(Interrupted):
        next(work)
    assert "interrupted" in command("bulk").output
    assert command("bulk", "resume", running["id"]).stdout == "1 event more was changed.\n"
    assert OutboxEvent.select().count() == 0


def test_retry_tries_waiting_events_now(box: Outbox, command: Command) -> None:
    @outbox.handler("*", name="runner")
    def run(event: outbox.Event) -> None:
        raise ValueError("not yet")

    emit_one()
    box.process_pending_events()
    assert command("retry", "-y", "--all").exit_code == 1
    assert command("retry", "--waiting", "-y", "--destination", "runner").stdout == "1 event was made due.\n"


def test_replay_delivers_again_to_one(box: Outbox, command: Command) -> None:
    calls: list[str] = []
    for name in ("a", "b"):
        outbox.handler("*", name=name)(lambda event, name=name: calls.append(name))
    event = emit_one()
    box.process_pending_events()
    assert command("replay", "-y", str(event.id), "--to", "b").stdout == "1 event was queued for replay to b.\n"
    box.process_pending_events()
    assert sorted(calls) == ["a", "b", "b"]


class TestEmit:
    def test_stores_an_event_and_prints_its_id(self, command: Command) -> None:
        result = command(
            "emit", "Order", "7", "order.placed", '{"total": 3}', "--header", "a=b=c", "--tenant", "acme",
            "--correlation", "story", "--max-attempts", "2", "--key", "k",
        )  # fmt: skip
        (event,) = OutboxEvent.select()
        assert result.stdout == f"{event.id}\n"
        assert (event.payload, event.headers) == ({"total": 3}, {"a": "b=c"})
        assert (event.tenant_id, event.correlation_id, event.max_attempts) == ("acme", "story", 2)
        assert event.idempotency_key == "k"

    def test_is_in_the_audit_log_without_its_content(self, box: Outbox, command: Command) -> None:
        arguments = ("emit", "Order", "7", "order.placed", '{"card": "hush"}', "--header", "a=hush", "--after", "1h")
        command(*arguments)
        (event,) = OutboxEvent.select()
        (entry,) = audit.latest(box.dialect)
        assert (entry.action, entry.affected, entry.outcome) == ("emit", 1, "done")
        assert list(audit.changed_ids(box.dialect, entry.id)) == [event.id]
        assert entry.parameters == {"type": "order.placed", "aggregate": "Order:7", "after": "1:00:00"}
        with pytest.raises(outbox.DuplicateEvent):
            command(*arguments)
        assert len(audit.latest(box.dialect)) == 1
        command(*arguments, "--unique")
        assert audit.latest(box.dialect)[0].parameters == {**entry.parameters, "unique": True}

    def test_has_a_transaction_where_one_is_required(
        self, configure: Configure, command: Command, caplog: pytest.LogCaptureFixture
    ) -> None:
        configure(require_transaction=True)
        command("emit", "Order", "7", "order.placed", "{}")
        configure()
        command("emit", "Order", "8", "order.placed", "{}")
        assert OutboxEvent.select().count() == 2
        assert not [record for record in caplog.records if record.levelname == "WARNING"]

    def test_reads_the_payload_from_standard_input(self, command: Command) -> None:
        command("emit", "Order", "7", "order.placed", "-", "--unique", "--after", "1h", input='{"a": 1}')
        (event,) = OutboxEvent.select()
        assert (event.payload, event.idempotency_key) == ({"a": 1}, str(event.id))
        assert event.next_attempt_at > event.created_at

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("{",), "PAYLOAD is not valid JSON"),
            (("{}", "--header", "a"), "--header takes NAME=VALUE, not 'a'"),
            (("{}", "--key", "k", "--unique"), "--key and --unique exclude each other"),
        ],
    )
    def test_refuses_what_it_does_not_understand(
        self, command: Command, arguments: tuple[str, ...], message: str
    ) -> None:
        result = command("emit", "Order", "7", "order.placed", *arguments)
        assert (result.exit_code, OutboxEvent.select().count()) == (2, 0)
        assert message in result.output


class TestStatus:
    def test_shows_counts_failures_and_processes(self, box: Outbox, command: Command) -> None:
        fail_all(box, 2)
        emit(3)
        box.reporter.kind = WORKER
        outbox.handler("*", name="mailer")(lambda event: None)
        box.reporter.report_now()
        output = command("status").output
        assert re.search(r"^pending +3$", output, re.MULTILINE)
        assert re.search(r"^failed +2$", output, re.MULTILINE)
        assert "due now 3, in flight 0; the oldest unfinished is" in output
        assert re.search(r"2 +runner +\d+ m?s ago +\d+ m?s ago +Reject: HTTP 500", output)
        assert re.search(r"^worker .* ago +mailer$", output, re.MULTILINE)
        assert "last 5 minutes: 5 emitted, 0 delivered, 0 retried, 2 failed" in output

    def test_shows_calls_that_have_not_returned(self, box: Outbox, command: Command) -> None:
        stuck = {"billing": {"calls": 1, "seconds": 120.0, "all_places": True}}
        publish_process(box, pid=7, stuck=stuck, ready=False)
        output = command("status").output
        assert "1 call of billing on alpha:7 has not returned for 2 min; this process delivers nothing more" in output
        (process,) = json.loads(command("status", "--json").output)["processes"]
        assert (process["ready"], process["stuck"]) == (False, stuck)

    def test_names_workers_that_can_not_reach_their_broker(self, box: Outbox, command: Command) -> None:
        box.reporter.kind = WORKER
        box.reporter.broker_error = "ConnectionError: refused"
        box.reporter.report_now()
        told = r"^worker .*:\d+ can't reach its broker \(Redis\), so it polls for due events: ConnectionError: refused$"
        assert re.search(told, command("status").output, re.MULTILINE)
        (process,) = json.loads(command("status", "--json").output)["processes"]
        assert process["broker_error"] == "ConnectionError: refused"

    def test_says_what_to_start_when_no_process_runs(self, command: Command) -> None:
        assert "start `outbox worker your.module` and `outbox scheduler`" in command("status").output

    def test_is_json_for_programs(self, box: Outbox, command: Command) -> None:
        fail_all(box, 2)
        told = json.loads(command("status", "--json").output)
        assert told["counts"]["failed"] == {"number": 2, "at_least": False}
        (failure,) = told["failures"]
        assert failure["example"] == str(OutboxEvent.select().order_by(OutboxEvent.id)[-1].id)
        assert (failure["destination"], failure["error"], failure["events"]) == ("runner", "Reject: HTTP 500", 2)
        assert told["failed_by_destination"] == {"runner": {"number": 2, "at_least": False}}
        assert len(told["activity"]) == 60

    def test_shows_destinations_whose_circuit_breaker_is_open(self, box: Outbox, command: Command) -> None:
        @outbox.handler("*", name="shaky")
        def shaky(event: outbox.Event) -> None:
            raise outbox.Unavailable("no route")

        emit(10)
        box.process_pending_events()
        box.reporter.report_now()
        assert re.search(r"shaky: unavailable, next try in \d+ s: no route", command("status").output)


class TestDeliver:
    def test_delivers_what_is_due_and_ends(self, url: str, box: Outbox, tmp_path: Path) -> None:
        emit(5, "note.taken")
        (tmp_path / "notes.py").write_text(
            "import outbox\n\n@outbox.handler('note.*')\ndef take(event):\n    print('took', event.aggregate_id)\n"
        )
        done = run(BIN / "outbox", "deliver", "notes", "--batch-size", "2", cwd=tmp_path, database_url=url)
        assert done.returncode == 0, done.stdout
        assert done.stdout.count("took") == 5
        assert "5 claimed: 5 delivered, 0 retried, 0 failed, 0 released" in done.stdout
        assert statuses() == Counter({DELIVERED: 5})

    def test_ends_with_1_if_an_event_failed(self, url: str, box: Outbox, tmp_path: Path) -> None:
        emit(1, "note.taken")
        (tmp_path / "notes.py").write_text(
            "import outbox\n\n@outbox.handler('*')\ndef take(event):\n    raise outbox.Reject('no')\n"
        )
        done = run(BIN / "outbox", "deliver", "notes", cwd=tmp_path, database_url=url)
        assert (done.returncode, statuses()) == (1, Counter({FAILED: 1})), done.stdout

    def test_refuses_to_deliver_without_a_destination(self, url: str, box: Outbox) -> None:
        emit(1)
        done = run(BIN / "outbox", "deliver", database_url=url)
        assert (done.returncode, statuses()) == (2, Counter({PENDING: 1}))
        assert "no handler is registered" in done.stdout


class TestCleanup:
    @pytest.fixture
    def box(self, configure: Configure) -> Outbox:
        return configure(retention_hours=2)

    def test_deletes_what_is_old_after_asking(self, box: Outbox, command: Command) -> None:
        fail_all(box, 2)
        let_pass(hours=3)
        fail_all(box, 1)
        assert command("cleanup", "--dry-run").stdout == "2 events ended more than 2 hours ago.\n"
        assert command("cleanup", input="n\n").exit_code == 1
        assert OutboxEvent.select().count() == 3
        done = command("cleanup", "--yes")
        assert done.stdout == "2 events and 0 inbox messages were deleted.\n"
        assert OutboxEvent.select().count() == 1

    def test_takes_another_retention(self, box: Outbox, command: Command) -> None:
        fail_all(box, 1)
        let_pass(hours=1)
        assert "1 events and" in command("cleanup", "-y", "--retention-hours", "0.5").stdout


def test_version_prints_what_a_bug_report_needs(command: Command) -> None:
    lines = command("version").output.splitlines()
    assert lines[0] == f"outbox {outbox.__version__}"
    assert any(line.startswith("peewee 4") for line in lines)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_the_shell(shell: str, command: Command) -> None:
    assert "_OUTBOX_COMPLETE" in command("completion", shell).output


def test_status_names_the_destinations_that_no_running_worker_has(box: Outbox, command: Command) -> None:
    other_worker(box, crm="*")
    assert "no running worker has" not in command("status").output
    let_records_age(box, minutes=4)
    assert "no running worker has: crm" in command("status").output
    assert json.loads(command("status", "--json").output)["absent_destinations"] == ["crm"]


def test_a_shell_completes_commands(url: str) -> None:
    program = shlex.quote(str(Path(BIN) / "outbox"))
    done = run("/bin/sh", "-c", f"COMP_WORDS='outbox re' COMP_CWORD=1 _OUTBOX_COMPLETE=bash_complete {program}")
    assert {line.split(",")[1] for line in done.stdout.splitlines()} == {
        "recover",
        "reencrypt",
        "replay",
        "resume",
        "retire",
        "retry",
    }


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_every_command_explains_itself(name: str, command: Command) -> None:
    result = command(name, "--help")
    assert result.exit_code == 0
    assert len(result.output.splitlines()) > 4


@pytest.mark.parametrize("package", ["apscheduler", "dramatiq", "httpx", "redis", "starlette"])
def test_help_does_not_import_what_only_some_commands_need(package: str) -> None:
    program = "import sys; from outbox.cli import cli; cli(['--help'], standalone_mode=False)"
    assert run_python(f"{program}; print({package!r} in sys.modules)").endswith("\nFalse\n")


def test_the_module_that_configures_the_database_can_be_named(url: str, box: Outbox, tmp_path: Path) -> None:
    emit(2)
    (tmp_path / "app.py").write_text(
        "import outbox\nfrom outbox.storage.connect import open_database\n"
        f"outbox.configure(database=open_database({url!r}))\n"
    )
    done = run(BIN / "outbox", "list", "-m", "app", "--json", cwd=tmp_path)
    assert len(json.loads(done.stdout)["events"]) == 2


NEED_TABLES = (
    ["status"],
    ["list"],
    ["show", "01a1ec15-5f4d-7000-8f3f-35c61540423f"],
    ["metrics"],
    ["retry", "--all"],
    ["fail", "--all"],
    ["delete", "--all"],
    ["replay", "--all"],
    ["emit", "Order", "1", "order.placed"],
    ["deliver"],
    ["cleanup", "--yes"],
)


@pytest.mark.parametrize("arguments", NEED_TABLES, ids=" ".join)
def test_a_database_without_tables_is_one_clear_line(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "outbox.db").touch()
    done = run(BIN / "outbox", *arguments, cwd=tmp_path, webhook_url="http://127.0.0.1:9/")
    assert done.returncode == 2
    assert "The outbox has no tables in sqlite:///" in done.stdout
    assert "Traceback" not in done.stdout


@pytest.mark.parametrize("arguments", [*NEED_TABLES, ["doctor"]], ids=" ".join)
def test_no_command_makes_a_database(arguments: list[str], tmp_path: Path) -> None:
    done = run(BIN / "outbox", *arguments, cwd=tmp_path, webhook_url="http://127.0.0.1:9/")
    assert done.returncode == 2
    assert "sqlite:///outbox.db" in done.stdout
    assert "`outbox init`" in done.stdout
    assert "Traceback" not in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_but_init_does(tmp_path: Path) -> None:
    assert run(BIN / "outbox", "init", cwd=tmp_path).returncode == 0
    assert (tmp_path / "outbox.db").exists()


def test_a_database_that_is_not_there_is_one_clear_line_without_its_password() -> None:
    done = run(BIN / "outbox", "status", database_url="postgresql://u:hush@127.0.0.1:9/d")
    assert done.returncode == 2
    assert "outbox: can't use the database (OUTBOX_DATABASE_URL)" in done.stdout
    assert "hush" not in done.stdout
    assert "Traceback" not in done.stdout


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda signum: signum.name)
def test_an_interrupted_action_says_how_many_events_it_has_changed(
    url: str, box: Outbox, tmp_path: Path, signum: signal.Signals
) -> None:
    emit(20)
    command: list[str | Path] = [BIN / "outbox", "fail", "--all", "--yes", "--per-second", "2"]
    program = Program(command, environment(database_url=url), tmp_path / "output")
    try:
        becomes_true(lambda: statuses()[FAILED] >= 2)
        program.signal(signum)
        assert program.wait() == 128 + signum
    finally:
        program.kill()
    failed = statuses()[FAILED]
    assert 2 <= failed < 20
    assert f"Interrupted after {failed} events. Run the same command again for the rest." in program.said()
    (entry,) = audit.latest(box.dialect)
    assert (entry.affected, entry.outcome, entry.cause) == (failed, "interrupted", signum.name)
    assert entry.ended_at is not None
    assert len(list(audit.changed_ids(box.dialect, entry.id))) == failed
    done = run(BIN / "outbox", "fail", "--all", "--yes", database_url=url)
    assert done.stdout.splitlines()[-1] == f"{20 - failed} events were marked failed."
