"""`outbox pause`, `resume`, `throttle`, `recover` and `drain`, and where their effect is shown."""

import json
from datetime import timedelta

import pytest

import outbox
from outbox import SettingsError
from outbox.core import Outbox
from outbox.destinations.controls import EVERYTHING
from outbox.errors import RegistrationError, SchemaError
from outbox.operations import controls
from outbox.storage.models import DELIVERED
from outbox.telemetry.audit import latest
from tests.cli.conftest import Command
from tests.support.controls import ALICE, controlled
from tests.support.ordering import Receiver, crm, run
from tests.support.table import claimed, emit, expire_leases, statuses

__all__ = ["crm"]


@pytest.fixture
def worker(box: Outbox, crm: Receiver) -> Outbox:
    """A worker that has recorded its destination."""
    box.become_worker()
    return box


def test_a_pause_is_shown_audited_and_ended(worker: Outbox, command: Command) -> None:
    done = command("pause", "crm", "--for", "2h", "--reason", "they migrate")
    assert done.output.startswith("crm is paused until 20")
    listed = command("destinations").output
    assert "paused for" in listed
    assert "they migrate" in listed
    (found,) = json.loads(command("destinations", "--json").output)
    assert found["paused"]["reason"] == "they migrate"
    emit(2)
    run(worker)
    assert command("resume", "crm").output == "crm is resumed: 2 events made due.\n"
    assert "paused" not in command("destinations").output
    run(worker)
    assert statuses() == {DELIVERED: 2}
    assert [(entry.action, entry.filters) for entry in latest(worker.dialect)] == [
        ("resume", {"destination": "crm"}),
        ("pause", {"destination": "crm", "seconds": 7200.0, "reason": "they migrate"}),
    ]


def test_a_resume_that_is_interrupted_before_all_events_are_due_ends_as_interrupted(worker: Outbox) -> None:
    controls.pause(worker.dialect, "crm", operator=ALICE)
    emit(2)
    run(worker)

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        controls.resume(worker.dialect, interrupt, "crm", operator=ALICE)
    entry = latest(worker.dialect)[0]
    assert (entry.action, entry.outcome, entry.cause) == ("resume", "interrupted", "SIGINT")


def test_everything_can_be_paused(worker: Outbox, command: Command) -> None:
    assert command("pause", "--all").output == "Everything is paused until it is resumed.\n"
    assert "everything" in command("destinations").output
    assert command("resume", "--all").output == "Everything is resumed: no event was waiting.\n"
    assert command("resume", "--all").output == "Everything was not paused: no event was waiting.\n"


def test_a_name_that_no_worker_has_recorded_is_refused(worker: Outbox, command: Command) -> None:
    with pytest.raises(RegistrationError, match="Recorded are: crm"):
        command("pause", "cmr")
    assert command("pause", "dramatiq", "--force").exit_code == 0
    assert latest(worker.dialect)[0].filters == {"destination": "dramatiq", "force": True}
    assert command("pause").exit_code == 2
    assert command("pause", "crm", "--all").exit_code == 2


def test_a_throttle_is_shown_and_ended(worker: Outbox, command: Command) -> None:
    assert command("throttle", "crm", "5").output == "crm gets at most 5 events a second until it is ended.\n"
    assert "throttled to 5/s" in command("destinations").output
    assert command("throttle", "crm", "--off").output == "crm is no longer throttled: no event was waiting.\n"
    assert not controlled(worker).throttles
    assert command("throttle", "crm").exit_code == 2
    with pytest.raises(SettingsError, match=r"from 0\.01 to 100,000"):
        command("throttle", "crm", "0")


def test_a_destination_that_is_back_is_tried(worker: Outbox, command: Command) -> None:
    assert command("recover", "crm").output == "crm is tried again: no event was waiting.\n"
    assert set(controlled(worker).reached) == {"crm"}


def test_drain_waits_for_what_is_being_delivered_and_for_nothing_else(worker: Outbox, command: Command) -> None:
    assert command("drain", "--pause").output.endswith("Nothing is being delivered.\n")
    assert EVERYTHING in controlled(worker).pauses
    emit(3)
    claimed(worker)
    done = command("drain", "--timeout", "0s")
    assert (done.exit_code, "3 events" in done.output) == (1, True)
    expire_leases()
    assert command("drain").exit_code == 0


def test_what_is_over_is_neither_shown_nor_kept(worker: Outbox, command: Command) -> None:
    from tests.support.controls import let_controls_age, pause

    pause("crm", timedelta(hours=1))
    let_controls_age(worker, hours=2)
    assert "paused" not in command("destinations").output
    pause(EVERYTHING)
    found = controlled(worker)
    assert set(found.pauses) == {EVERYTHING}
    assert found.paused_seconds["crm"] == pytest.approx(3600, abs=5)


def test_a_row_that_was_deleted_says_how_to_restore_it(worker: Outbox, command: Command) -> None:
    outbox.current().dialect.run("DELETE FROM outbox_control WHERE name = 'controls'")
    with pytest.raises(SchemaError, match="INSERT INTO outbox_control"):
        command("pause", "crm")
    emit(1)
    run(worker)
    assert statuses() == {DELIVERED: 1}


def test_a_row_that_was_changed_by_hand_stops_no_delivery(worker: Outbox, command: Command) -> None:
    worker.dialect.run("UPDATE outbox_control SET value = '[1]' WHERE name = 'controls'")
    worker.dialect.run("UPDATE outbox_control SET version = version + 1 WHERE name = 'destinations'")
    emit(1)
    run(worker)
    assert statuses() == {DELIVERED: 1}
