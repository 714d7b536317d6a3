"""`outbox erase`: what it says before, afterwards, and about what is left."""

import pytest

import outbox
from outbox import OutboxEvent
from outbox.core import Outbox
from outbox.operations.erase import UnfinishedEvents
from outbox.storage.models import DELIVERED, FAILED
from outbox.telemetry.audit import latest
from tests.cli.conftest import Command
from tests.support.ordering import Receiver, crm, run
from tests.support.table import change, claimed, emit, emit_one, statuses, stored

__all__ = ["crm"]

SECRET = "alice@example.com"


@pytest.fixture
def ended(box: Outbox, crm: Receiver) -> list[OutboxEvent]:
    """Two events about user:7 that are delivered, and one about somebody else."""
    events = emit(2, subject="user:7", payload={"mail": SECRET}, tenant_id="acme")
    emit_one("note.taken")
    run(box)
    return events


def test_it_says_what_it_will_do_and_asks(command: Command, ended: list[OutboxEvent]) -> None:
    done = command("erase", "--subject", "user:7", input="n\n")
    assert (done.exit_code, "can't be undone" in done.stderr) == (1, True)
    assert "2 events will be erased. Continue?" in done.stderr
    assert stored(ended[0]).payload == {"mail": SECRET}
    done = command("erase", "--subject", "user:7", input="y\n")
    assert (done.exit_code, done.stdout) == (0, "2 events were erased.\n")
    assert [stored(each).payload for each in ended] == [{}, {}]


def test_a_dry_run_says_which_and_changes_nothing(command: Command, ended: list[OutboxEvent]) -> None:
    emit_one("user.left", subject="user:7")
    done = command("erase", "--subject", "user:7", "--dry-run").stdout.splitlines()
    assert done[:2] == ["2 events would be erased.", "1 event not ended, 0 of them being delivered: see --pending."]
    assert [line.split()[:4] for line in done[3:]] == [
        ["2", "delivered", "event", "order.placed"],
        ["1", "pending", "event", "user.left"],
    ]
    assert latest(outbox.current().dialect) == []


def test_what_has_not_ended_has_to_be_decided_about(command: Command, box: Outbox, ended: list[OutboxEvent]) -> None:
    emit_one("user.left", subject="user:7")
    with pytest.raises(UnfinishedEvents, match=r"--pending=deliver .*--pending=drop"):
        command("erase", "--subject", "user:7", "--yes")
    done = command("erase", "--subject", "user:7", "--yes", "--pending", "deliver")
    assert (done.exit_code, done.stdout) == (1, "2 events were erased.\n")
    assert "Left: 1 waiting to be delivered." in done.stderr
    done = command("erase", "--subject", "user:7", "--pending", "drop", input="y\n")
    assert "1 event will be dropped without being delivered." in done.stderr
    assert (done.exit_code, done.stdout) == (0, "1 event was erased.\n")
    assert statuses() == {DELIVERED: 3, FAILED: 1}


def test_it_waits_for_what_a_worker_is_delivering(command: Command, box: Outbox, crm: Receiver) -> None:
    emit_one(subject="user:7")
    claimed(box)
    change(lease_until=stored(OutboxEvent.get()).updated_at)  # it is about to be dropped
    done = command("erase", "--subject", "user:7", "--pending", "drop", "--wait", "30s", "--yes")
    assert (done.exit_code, done.stdout) == (0, "1 event was erased.\n")


def test_one_that_is_being_delivered_is_left(command: Command, box: Outbox, crm: Receiver) -> None:
    emit_one(subject="user:7")
    claimed(box)
    done = command("erase", "--subject", "user:7", "--pending", "drop", "--yes")
    assert (done.exit_code, "Left: 1 being delivered right now" in done.stderr) == (1, True)


def test_it_needs_to_know_whom(command: Command, box: Outbox) -> None:
    assert command("erase").exit_code == 2
    assert command("erase", "--aggregate", "Order").exit_code == 2
    nothing = command("erase", "--tenant", "acme")
    assert (nothing.exit_code, nothing.stdout) == (1, "No events to be erased match.\n")


def test_a_retry_or_replay_says_that_the_content_is_gone(command: Command, ended: list[OutboxEvent]) -> None:
    command("erase", "--tenant", "acme", "--yes")
    done = command("replay", str(ended[0].id), "--yes")
    assert (done.exit_code, done.stdout) == (1, "No events to be queued for replay match.\n")
    assert done.stderr.startswith("1 event left out: the content was erased")
    assert "1 event left out" in command("replay", str(ended[0].id), "--dry-run").stderr
    shown = command("show", str(ended[0].id)).stdout
    assert "erased_at" in shown
    assert "it can't be replayed" in shown


def test_a_dry_run_of_an_action_has_a_breakdown(command: Command, ended: list[OutboxEvent]) -> None:
    done = command("replay", "--all", "--dry-run").stdout.splitlines()
    assert done[0] == "3 events would be queued for replay."
    assert [line.split()[:4] for line in done[2:]] == [
        ["2", "delivered", "event", "order.placed"],
        ["1", "delivered", "event", "note.taken"],
    ]
    assert command("list", "--subject", "user:7").stdout.count("order.placed") == 2


def test_who_knows_the_value_finds_the_entry(command: Command, ended: list[OutboxEvent]) -> None:
    command("erase", "--subject", "user:7", "--yes")
    assert "erase" in command("audit", "--about", "user:7").stdout
    assert "erase" not in command("audit", "--about", "user:8").stdout
    assert "user:7" not in command("audit").stdout
