"""Schedulers are there to be late: one that is dead, or stands still, loses nothing."""

import signal

from tests.support.processes import Emitter, MakeStage, Stage
from tests.support.servers import send


def test_while_it_is_dead_commits_alone_have_a_dead_workers_events_taken_over(make_stage: MakeStage) -> None:
    stage = make_stage(lease_seconds=1)
    scheduler = stage.scheduler()
    gate = stage.gate()
    (held,) = stage.emit(1, do="wait", gate=str(gate))
    doomed = stage.worker(threads=1)
    stage.wait_until_begun(held)
    scheduler.kill()
    doomed.kill()
    gate.touch()
    stage.worker()
    emitter = Emitter(stage)
    stage.wait_for(lambda: held in stage.ended(), "another worker has delivered it")
    assert emitter.stop() == 0
    stage.wait_until_all("delivered")
    assert set(stage.ended()) == {held, *emitter.committed()}


def test_after_it_was_dead_all_that_nobody_was_woken_for_is_delivered(make_stage: MakeStage) -> None:
    stage = make_stage(sweep_seconds=3600)  # the worker does not look by itself; a scheduler begins with a sweep
    stage.worker()
    stage.scheduler().kill()
    ids = stage.emit(20)  # wakes nobody
    assert stage.statuses() == {"pending": 20}
    stage.scheduler()
    stage.wait_until_all("delivered")
    assert sorted(stage.ended()) == sorted(ids)


def test_one_that_was_paused_sweeps_again_when_it_goes_on(stage: Stage) -> None:
    scheduler = stage.scheduler()
    queue = f"{stage.settings.namespace}:{stage.settings.queue}"
    stage.wait_for(lambda: stage.broker.client.llen(queue) >= 2, "it sweeps")
    send(signal.SIGSTOP, scheduler.family())
    ids = stage.emit(20)
    stage.broker.client.delete(queue)
    stage.wait_for(lambda: is_older(stage, seconds=3), "it has missed ten sweeps")
    assert stage.broker.client.llen(queue) == 0
    send(signal.SIGCONT, scheduler.family())
    stage.wait_for(lambda: stage.broker.client.llen(queue) >= 1, "it sweeps again")
    stage.worker()
    stage.wait_until_all("delivered")
    assert sorted(stage.ended()) == sorted(ids)


def test_of_two_one_is_paused_the_other_is_enough_and_nothing_comes_twice_when_it_goes_on(stage: Stage) -> None:
    paused, other = stage.scheduler(), stage.scheduler()
    stage.worker()
    send(signal.SIGSTOP, paused.family())
    meanwhile = stage.emit(100, do="work", seconds=0.002)  # wakes nobody
    stage.wait_until_all("delivered")
    send(signal.SIGCONT, paused.family())
    other.kill()
    after = stage.emit(100, do="work", seconds=0.002)
    stage.wait_until_all("delivered")
    assert sorted(stage.began()) == sorted(stage.ended()) == sorted([*meanwhile, *after])
    assert paused.running


def is_older(stage: Stage, seconds: float) -> bool:
    with stage.box.dialect.connection():
        query = "SELECT clock_timestamp() - min(created_at) > %s * interval '1 second' FROM outbox_event"
        return bool(stage.box.dialect.run(query, (seconds,)).fetchone()[0])
