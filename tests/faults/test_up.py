"""`outbox up`: everything in one process, on SQLite, without a server."""

import contextlib
import signal
import sqlite3
from collections import Counter
from pathlib import Path

import pytest

from tests.support.processes import BIN, Emitter, MakeStage, Stage


@pytest.fixture
def stage(make_stage: MakeStage, sqlite_url: str) -> Stage:
    return make_stage(database_url=sqlite_url, redis_url=None)


@pytest.fixture
def lazy_stage(make_stage: MakeStage, sqlite_url: str) -> Stage:
    """One whose sweeps don't come while a test lasts, but for the first."""
    return make_stage(database_url=sqlite_url, redis_url=None, sweep_seconds=3600)


def test_the_sweep_delivers_what_another_process_emits(stage: Stage) -> None:
    stage.up()
    emitter = Emitter(stage)
    emitter.wait_for_more(20)
    assert emitter.stop() == 0
    stage.wait_until_all("delivered")
    assert Counter(stage.ended()) == Counter(stage.began()) == Counter(emitter.committed())


def test_what_the_process_emits_itself_is_delivered_without_a_sweep(lazy_stage: Stage) -> None:
    with lazy_stage.box.dialect.connection():
        lazy_stage.box.emit("Thing", "1", "chain.first")
    lazy_stage.up("tests.apps.chain")
    lazy_stage.wait_for(lambda: lazy_stage.statuses() == {"delivered": 2}, "both are delivered")
    assert len(lazy_stage.ended()) == 1


def test_a_failing_handler_is_tried_again(stage: Stage) -> None:
    (event,) = stage.emit(1, do="fail", times=2)
    stage.up()
    stage.wait_until_all("delivered")
    assert [entry.attempt for entry in stage.entries("began")] == [1, 2, 3]
    assert stage.ended() == [event]
    assert stage.rows("attempts", "error_message") == [(3, None)]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_it_finish_what_is_in_flight(stage: Stage, signum: signal.Signals) -> None:
    gate = stage.gate()
    (event,) = stage.emit(1, do="wait", gate=str(gate))
    up = stage.up()
    stage.wait_until_begun(event)
    up.signal(signum)
    stage.wait_for(lambda: "stopping" in up.said(), "it has heard the signal")
    gate.touch()
    assert up.wait() == 0
    assert stage.ended() == [event]
    assert stage.rows("status", "attempts", "lease_id") == [("delivered", 1, None)]


def test_a_signal_under_load_gives_back_what_has_not_begun(stage: Stage) -> None:
    ids = stage.emit(1_000, do="work", seconds=0.005)
    up = stage.up()
    stage.wait_for(lambda: len(stage.began()) > 20, "it is busy")
    up.signal(signal.SIGTERM)
    assert up.wait() == 0
    ended = stage.ended()
    assert Counter(stage.began()) == Counter(ended)
    assert stage.statuses() == {"delivered": len(ended), "pending": len(ids) - len(ended)}
    assert {attempts for attempts, status in stage.rows("attempts", "status") if status == "pending"} == {0}


def test_several_processes_share_one_file(stage: Stage) -> None:
    processes = [stage.up(), stage.up()]
    ids = stage.emit(600, do="work", seconds=0.002)
    stage.wait_until_all("delivered")
    assert Counter(stage.began()) == Counter(stage.ended()) == Counter(ids)
    assert len({entry.pid for entry in stage.entries("ended")}) == 2
    for process in processes:
        assert "locked" not in process.said()


def test_a_killed_process_costs_nothing_but_a_lease(make_stage: MakeStage, sqlite_url: str) -> None:
    stage = make_stage(database_url=sqlite_url, redis_url=None, lease_seconds=1)
    gate = stage.gate()
    ids = stage.emit(5) + stage.emit(1, do="wait", gate=str(gate)) + stage.emit(5)
    killed = stage.up()
    stage.wait_until_begun(ids[5])
    killed.kill()
    gate.touch()
    stage.up()
    stage.wait_until_all("delivered")
    assert set(stage.ended()) == set(ids)


@pytest.mark.parametrize(
    ("module", "line"),
    [("nowhere.to_be_found", "There is no module 'nowhere.to_be_found' in"), ("json", "no handler is registered")],
)
def test_a_module_that_is_of_no_use_is_one_clear_line(stage: Stage, module: str, line: str) -> None:
    up = stage.start("up", BIN / "outbox", "up", module)
    assert up.wait() == 2
    assert "Traceback" not in up.said()
    assert line in up.said()


def test_it_makes_its_own_tables(stage: Stage, tmp_path: Path) -> None:
    file = tmp_path / "new.db"
    stage.environment["OUTBOX_DATABASE_URL"] = f"sqlite:///{file}"
    stage.up()
    with contextlib.closing(sqlite3.connect(file)) as connection:
        assert connection.execute("SELECT count(*) FROM outbox_event").fetchone() == (0,)
