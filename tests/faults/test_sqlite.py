"""SQLite under four processes, kills in mid-write, and a full disk: the file stays whole, and nothing is lost."""

import contextlib
import resource
import sqlite3
from collections import Counter
from uuid import UUID

import pytest

from tests.support.processes import Emitter, MakeStage, Stage
from tests.support.program import run_python

MEGABYTE = 1_000_000


@pytest.fixture
def stage(make_stage: MakeStage, sqlite_url: str) -> Stage:
    return make_stage(database_url=sqlite_url, redis_url=None, lease_seconds=2)


def assert_the_file_is_whole(stage: Stage) -> None:
    path = stage.settings.database_url.removeprefix("sqlite:///")
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_of_four_processes_two_are_killed_in_mid_write_again_and_again_and_nothing_is_lost(stage: Stage) -> None:
    workers = [stage.up(), stage.up()]
    emitters = [Emitter(stage), Emitter(stage)]
    for _ in range(3):
        # They write all the time: a kill hits them in the middle of it, or nearly so.
        emitters[1].wait_for_more(30)
        before = len(stage.ended())
        stage.wait_for(lambda: len(stage.ended()) > before + 10, "somebody delivers")  # noqa: B023 - at once
        for dead in (emitters.pop(0).program, workers.pop(0)):
            dead.kill()
        assert_the_file_is_whole(stage)
        emitters.append(Emitter(stage))
        workers.append(stage.up())
    emitters[0].stop()
    emitters[1].program.wait()
    stage.wait_until_all("delivered")
    assert_the_file_is_whole(stage)
    assert set(emitters[0].committed()) <= set(stage.ended())
    assert {UUID(id) for (id,) in stage.rows("id")} == set(stage.ended())
    assert len({(entry.id, entry.body) for entry in stage.entries("began")}) == len(set(stage.began()))
    assert all("database is locked" not in program.said() for program in stage.programs)


# Files may grow no further than so: to SQLite that is a disk that is full, but for the words.
FILL_THE_DISK = """
import resource, sys
import peewee
import outbox

box = outbox.current()
endless = resource.getrlimit(resource.RLIMIT_FSIZE)

def emit():
    with box.dialect.connection(), box.database.atomic():
        event = outbox.emit("Thing", 1, "test.emitted", {"do": "pass", "ballast": "x" * 50_000},
                            idempotency_key=outbox.UNIQUE)
    print(event.id)

resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, endless[1]))
try:
    while True:
        emit()
except peewee.OperationalError as error:
    print("full:", error)
resource.setrlimit(resource.RLIMIT_FSIZE, endless)
emit()
"""


class TestAFullDisk:
    def test_fails_the_transaction_and_no_other_and_the_emitter_goes_on_when_there_is_room(self, stage: Stage) -> None:
        said = run_python(FILL_THE_DISK, database_url=stage.settings.database_url, dispatch="off").split("\n")
        (full,) = (line for line in said if line.startswith("full:"))
        committed = {UUID(line) for line in said if line and line != full}
        assert len(committed) > 5
        assert_the_file_is_whole(stage)
        assert {UUID(id) for (id,) in stage.rows("id")} == committed
        stage.up()
        stage.wait_until_all("delivered")
        assert Counter(stage.ended()) == Counter(committed)

    @pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="only Linux limits a process that runs")
    def test_stops_a_worker_from_claiming_and_it_goes_on_when_there_is_room(self, stage: Stage) -> None:
        worker = stage.up()
        endless = resource.prlimit(worker.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (MEGABYTE, endless[1]))
        ids = stage.emit(20, ballast="x" * 100_000)
        stage.wait_for(lambda: "Could not use the database" in worker.said(), "the worker says so")
        assert stage.began() == []
        assert worker.running
        resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, endless)
        stage.wait_until_all("delivered")
        assert Counter(stage.began()) == Counter(stage.ended()) == Counter(ids)
        assert_the_file_is_whole(stage)
