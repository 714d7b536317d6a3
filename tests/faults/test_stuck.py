"""Calls that never return keep their own places, and their process says so instead of losing thread after thread."""

import os
from pathlib import Path
from uuid import UUID

import pytest

from outbox.admin.doctor.check import OK, PROBLEM
from outbox.storage.models import DELIVERED
from tests.admin.doctor.findings import finding_of
from tests.support.processes import MakeStage, Program, Stage

SETTINGS = {"drains": 1, "lease_seconds": 1, "max_run_seconds": 2, "publish_seconds": 0.3}


class Dam:
    """A call that reads from here waits in the operating system, where no exception reaches it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "dam"
        os.mkfifo(self.path)

    def open(self) -> None:
        """Let go whoever waits, and those who come later."""
        writer = os.open(self.path, os.O_RDWR)
        self.path.unlink()
        self.path.touch()
        os.close(writer)


@pytest.fixture
def dam(tmp_path: Path) -> Dam:
    return Dam(tmp_path)


def is_stuck(worker: Program) -> bool:
    return "1 calls of ledger have not returned" in worker.said()


def wait_until_put_off(stage: Stage, events: list[UUID]) -> None:
    """Wait until a worker has looked at these events, and has begun none of them."""
    is_put_off = "status = 'pending' AND attempts = 0 AND next_attempt_at > now()"
    stage.wait_for(
        lambda: {id for id, put_off in stage.rows("id", is_put_off) if put_off} >= set(events), "all are put off"
    )


def test_their_destination_gets_nothing_more_from_this_process_until_they_return(
    make_stage: MakeStage, dam: Dam
) -> None:
    stage = make_stage(**SETTINGS)
    stage.scheduler()
    worker = stage.worker()
    blocked = stage.emit(1, do="block", dam=str(dam.path))
    stage.wait_for(lambda: len(stage.began()) == 1, "the call that blocks")
    stage.emit(3)
    stage.wait_for(lambda: is_stuck(worker), "the process to say that it is stuck")
    wait_until_put_off(stage, stage.emit(3))
    assert stage.began() == blocked
    assert worker.said().count("have not returned") == 1
    assert "OUTBOX_EXIT_ON_STUCK is set" not in worker.said()
    stage.wait_for(lambda: finding_of(stage.box, "calls").level == PROBLEM, "the doctor to know")
    found = finding_of(stage.box, "calls")
    assert "1 call of ledger on" in found.what
    assert "OUTBOX_EXIT_ON_STUCK" in str(found.advice)
    assert worker.running
    dam.open()
    stage.wait_for(lambda: "Calls of ledger have returned" in worker.said(), "the call to return")
    stage.wait_for(lambda: finding_of(stage.box, "calls").level == OK, "the doctor to know")


def test_the_process_ends_if_it_is_to_and_another_delivers_the_rest(make_stage: MakeStage, dam: Dam) -> None:
    stage = make_stage(**SETTINGS, exit_on_stuck=True)
    stage.scheduler()
    worker = stage.worker()
    stage.emit(1, do="block", dam=str(dam.path))
    stage.wait_for(lambda: len(stage.began()) == 1, "the call that blocks")
    stage.emit(3)
    stage.wait_for(lambda: is_stuck(worker), "the process to say that it is stuck")
    worker.wait()
    assert "OUTBOX_EXIT_ON_STUCK is set" in worker.said()
    dam.open()
    stage.worker()
    with stage.box.dialect.connection():  # as if the time that they were put off for had passed
        due_now = "UPDATE outbox_event SET next_attempt_at = now(), progress = NULL WHERE status = 'pending'"
        stage.box.database.execute_sql(due_now)
    stage.wait_until_all(DELIVERED)
