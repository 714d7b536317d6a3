"""What the operator's commands show of jobs, and which of them they change."""

import json
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from dramatiq.brokers.stub import StubBroker

import outbox
from outbox.core import Outbox
from outbox.storage.models import DELIVERED, FAILED, PENDING, STATUSES, OutboxEvent
from tests.cli.conftest import Command
from tests.support.jobs import declare, enqueued, send, send_opaque
from tests.support.table import change, emit_one, statuses, stored


def listed(command: Command, *arguments: str) -> list[str]:
    """Return the ids that `outbox list` prints."""
    return [each["id"] for each in json.loads(command("list", "--json", *arguments).output)["events"]]


def failed_job(actor: Any, *args: Any) -> OutboxEvent:
    job = send(actor, *args)
    change(job, status=FAILED, next_attempt_at=None, error_message="dramatiq: refused")
    return job


class TestTheFilters:
    def test_find_jobs_by_actor_and_by_kind(self, command: Command, charge: Any) -> None:
        event, job, other = emit_one(), send(charge, 1), send(declare("remind"))
        assert listed(command, "--actor", "charge") == [str(job.id)]
        assert listed(command, "--kind", "job") == [str(other.id), str(job.id)]
        assert listed(command, "--kind", "event") == [str(event.id)]
        assert listed(command) == [str(other.id), str(job.id), str(event.id)]

    def test_tell_an_event_and_a_job_of_the_same_name_apart(self, command: Command, charge: Any) -> None:
        event, job = emit_one("charge", aggregate_type="money"), send(charge, 1)
        assert listed(command, "--type", "charge") == [str(event.id)]
        assert listed(command, "--aggregate", "money") == [str(event.id)]
        assert listed(command, "--actor", "charge") == [str(job.id)]

    def test_find_a_job_by_the_key_that_the_application_gave(self, command: Command, charge: Any) -> None:
        job = send(charge, 1, idempotency_key="order-1")
        event = emit_one("charge", idempotency_key="job:order-1x")
        assert listed(command, "--key", "order-1") == [str(job.id)]
        assert listed(command, "--key", "order-1", "--actor", "charge") == [str(job.id)]
        assert listed(command, "--key", "order-1", "--type", "charge") == []
        assert listed(command, "--key", "job:order-1") == []
        assert listed(command, "--key", "job:order-1x") == [str(event.id)]

    @pytest.mark.parametrize(
        "arguments",
        [("--actor", "a", "--kind", "event"), ("--actor", "a", "--type", "t"), ("--type", "t", "--kind", "job")],
    )
    def test_that_exclude_each_other_are_refused(self, command: Command, arguments: tuple[str, ...]) -> None:
        assert command("list", *arguments).exit_code == 2


class TestList:
    def test_shows_jobs_beside_events(self, command: Command, charge: Any) -> None:
        send(charge, 42)
        emit_one(aggregate_id="7")
        _, event, job = command("list").output.splitlines()
        assert "pending  event  order.placed  Order:7" in event
        assert "pending  job    charge        queue money" in job

    def test_of_jobs_shows_queue_arguments_and_due_time(self, command: Command, charge: Any) -> None:
        job = send(charge, 42, kwargs={"currency": "EUR"}, delay=timedelta(days=3))
        head, line = command("list", "--actor", "charge").output.splitlines()
        assert head.split() == [
            "ID", "CREATED", "(UTC)", "DUE", "(UTC)", "STATUS", "ACTOR", "QUEUE", "TRIES", "ARGUMENTS", "ERROR"
        ]  # fmt: skip
        assert f"{job.next_attempt_at:%Y-%m-%d %H:%M:%S}  pending  charge  money" in line
        assert line.endswith('42, currency="EUR"')

    def test_shows_an_opaque_message_as_opaque_and_cuts_long_arguments(self, command: Command, charge: Any) -> None:
        send_opaque(charge, 42)
        send(charge, "x" * 500)
        send(charge, "x" * 5_000)
        _, longest, long, opaque = command("list", "--kind", "job").output.splitlines()
        assert longest.endswith("  …")
        assert long.endswith("xxx…")
        assert "opaque: only the application's encoder" in opaque

    def test_has_the_words_of_dramatiq_in_json(self, command: Command, charge: Any) -> None:
        job = send(charge, 1, idempotency_key="order-1")
        (found,) = json.loads(command("list", "--json", "--actor", "charge").output)["events"]
        assert {name: found[name] for name in ("kind", "actor", "queue", "message_id", "idempotency_key")} == {
            "kind": "job",
            "actor": "charge",
            "queue": "money",
            "message_id": str(job.id),
            "idempotency_key": "order-1",
        }

    def test_says_so_if_no_job_matches(self, command: Command) -> None:
        assert "No jobs match." in command("list", "--actor", "charge").output


class TestShow:
    def test_shows_a_job_as_a_job(self, command: Command, charge: Any) -> None:
        job = send(charge, 42, kwargs={"currency": "EUR"}, idempotency_key="order-1", max_retries=7)
        shown = command("show", str(job.id)).output
        for line in (
            "kind:             job",
            "actor:            charge",
            "queue:            money",
            f"message_id:       {job.id}",
            "idempotency_key:  order-1",
            "next:             The job is due now.",
        ):
            assert line in shown
        assert f"due:              {job.next_attempt_at}" in shown
        assert 'args:\n[\n  42\n]\n\nkwargs:\n{\n  "currency": "EUR"\n}\n\noptions:\n{\n  "max_retries": 7' in shown
        for word in ("event_type", "aggregate", "payload", "job:"):
            assert word not in shown

    def test_masks_secrets_among_the_arguments(self, command: Command, charge: Any) -> None:
        job = send(charge, '{"pwd": "hush"}', kwargs={"access_key": "hush"})
        for arguments in (("show", str(job.id)), ("show", "--json", str(job.id)), ("list", "--kind", "job")):
            shown = command(*arguments).output
            assert "hush" not in shown
            assert "•••" in shown
        assert command("show", "--unmasked", str(job.id)).output.count("hush") == 2

    def test_shows_nothing_of_an_opaque_message_unless_it_is_asked_for(self, command: Command, charge: Any) -> None:
        job = send_opaque(charge, 42)
        content = job.payload["outbox_base64"]
        assert content not in command("show", "--json", str(job.id)).output
        assert content in command("show", "--json", "--unmasked", str(job.id)).output

    def test_shows_an_opaque_message_as_opaque(self, command: Command, charge: Any) -> None:
        shown = command("show", str(send_opaque(charge, 42).id)).output
        assert "message: opaque: only the application's encoder can read this message" in shown
        assert "outbox_base64" not in shown

    def test_says_that_the_message_was_enqueued(self, box: Outbox, command: Command, charge: Any) -> None:
        job = send(charge, 42)
        box.process_pending_events()
        assert "The job is delivered: its message was enqueued." in command("show", str(job.id)).output


class TestActions:
    def test_change_the_jobs_of_one_actor_only(self, command: Command, charge: Any) -> None:
        event, other = emit_one("charge"), failed_job(declare("remind"))
        job = failed_job(charge, 1)
        change(event, status=FAILED, next_attempt_at=None)
        assert command("retry", "-y", "--actor", "charge").stdout == "1 job was queued for retry.\n"
        assert [stored(each).status for each in (job, other, event)] == [PENDING, FAILED, FAILED]
        assert command("delete", "-y", "--kind", "event").stdout == "1 event was deleted.\n"
        assert command("fail", "-y", "--kind", "job").stdout == "1 job was marked failed.\n"
        assert statuses() == Counter({FAILED: 2})

    def test_a_replayed_job_is_enqueued_again_with_the_same_id(
        self, box: Outbox, command: Command, charge: Any, stub_broker: StubBroker
    ) -> None:
        job = send(charge, 1)
        box.process_pending_events()
        assert command("replay", "-y", "--actor", "charge").stdout == "1 job was queued for replay.\n"
        box.process_pending_events()
        assert [message.message_id for message in enqueued(stub_broker)] == [str(job.id)] * 2

    def test_a_replay_to_a_destination_never_has_a_job(
        self, box: Outbox, command: Command, charge: Any, stub_broker: StubBroker
    ) -> None:
        got: list[outbox.Event] = []
        outbox.handler("*", name="webhook")(got.append)
        job = send(charge, 1)
        box.process_pending_events()
        assert stored(job).status == DELIVERED
        for which in (["--all"], ["--actor", "charge"], [str(job.id)]):
            assert command("replay", "-y", "--to", "webhook", *which).exit_code == 1
        box.process_pending_events()
        assert (got, len(enqueued(stub_broker))) == ([], 1)


def _status_table(command: Command) -> list[str]:
    """Return the table of counts by status that `outbox status` prints, below its verdict."""
    lines = [" ".join(line.split()) for line in command("status").output.splitlines()]
    start = next(number for number, line in enumerate(lines) if line.startswith("STATUS "))
    return lines[start : start + 1 + len(STATUSES)]


class TestStatus:
    def test_counts_events_and_jobs_apart(self, box: Outbox, command: Command, charge: Any) -> None:
        assert _status_table(command) == ["STATUS EVENTS", *(f"{status} 0" for status in STATUSES)]
        send(charge, 1)
        box.process_pending_events()
        emit_one()
        send(charge, 2)
        failed_job(charge, 3)
        assert _status_table(command) == [
            "STATUS EVENTS JOBS",
            "pending 1 1",
            "sending 0 0",
            "delivered 0 1",
            "failed 0 1",
        ]
        data = json.loads(command("status", "--json").output)
        assert data["counts"]["pending"]["number"] == 2
        assert data["counts_by_kind"]["job"]["failed"] == {"number": 1, "at_least": False}
