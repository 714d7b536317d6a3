"""`python -m scheduler`, the real process."""

import signal
import sys

import pytest

from tests.support.processes import MakeStage, Program, Stage
from tests.support.servers import RedisServer


def test_its_sweeps_have_workers_deliver_what_nobody_was_woken_for(make_stage: MakeStage) -> None:
    stage = make_stage(sweep_seconds=3600)
    stage.worker()  # it does not look by itself while the test lasts
    stage.environment["OUTBOX_SWEEP_SECONDS"] = "0.3"
    stage.scheduler()
    for _ in range(2):
        ids = stage.emit(10)
        stage.wait_until_all("delivered")
        assert set(ids) <= set(stage.ended())
    assert len(stage.ended()) == 20


def test_its_clean_up_deletes_what_is_old(make_stage: MakeStage) -> None:
    stage = make_stage(retention_hours=0, cleanup_minutes=0.01)
    stage.worker()
    stage.emit(10)
    stage.wake()
    stage.scheduler()
    stage.wait_for(lambda: stage.rows("id") == [], "what was delivered is deleted")
    assert len(stage.ended()) == 10


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_good_order(stage: Stage, signum: signal.Signals) -> None:
    scheduler = stage.scheduler()
    scheduler.signal(signum)
    assert scheduler.wait() == 0
    assert "scheduler stopped" in scheduler.said()
    assert "Traceback" not in scheduler.said()


def test_two_at_once_do_no_harm(stage: Stage) -> None:
    schedulers = [stage.scheduler(), stage.scheduler()]
    stage.worker()
    ids = stage.emit(300, do="work", seconds=0.002)
    stage.wait_until_all("delivered")
    assert sorted(stage.began()) == sorted(stage.ended()) == sorted(ids)
    assert all(scheduler.running for scheduler in schedulers)


def test_without_redis_a_tick_is_logged_and_later_ones_work(make_stage: MakeStage) -> None:
    with RedisServer() as server:
        stage = make_stage(redis_url=server.url, sweep_seconds=3600)
        stage.worker()  # it does not look by itself while the test lasts
        stage.environment["OUTBOX_SWEEP_SECONDS"] = "0.3"
        server.stop()
        scheduler = stage.scheduler()
        stage.wait_for(lambda: scheduler.said().count("sweep: could not enqueue") >= 2, "ticks fail, and go on")
        stage.emit(10)
        server.start()
        stage.wait_until_all("delivered")
        scheduler.signal(signal.SIGTERM)
        assert scheduler.wait() == 0
        assert "Traceback" not in scheduler.said()


@pytest.mark.parametrize(
    ("variable", "value", "line"),
    [
        ("OUTBOX_REDIS_URL", "", "outbox: OUTBOX_REDIS_URL is not set"),
        ("OUTBOX_REDIS_URL", "nonsense", "outbox: OUTBOX_REDIS_URL must be a URL that begins with redis://"),
        ("OUTBOX_SWEEP_SECONDS", "often", "outbox: OUTBOX_SWEEP_SECONDS must be a number"),
    ],
)
def test_a_mistake_in_the_settings_is_one_clear_line(stage: Stage, variable: str, value: str, line: str) -> None:
    stage.environment[variable] = value
    scheduler: Program = stage.start("scheduler", sys.executable, "-m", "scheduler")
    assert scheduler.wait() == 2
    assert scheduler.said().startswith(line)
    assert scheduler.said().count("\n") == 1
