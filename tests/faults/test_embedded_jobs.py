"""Jobs of `outbox up`, whose queues are in memory: no job is lost with the process, whenever it ends."""

import signal
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import UUID

import dramatiq
import pytest

from outbox.dramatiq.send import store_message
from tests.support.processes import MakeStage, Stage

APP = "tests.apps.embedded_jobs"


@pytest.fixture
def stage(make_stage: MakeStage, sqlite_url: str) -> Stage:
    return make_stage(database_url=sqlite_url, redis_url=None, lease_seconds=1, sweep_seconds=1)


def message(actor: str, *args: Any, **options: Any) -> dramatiq.Message[Any]:
    return dramatiq.Message("default", actor, args, {}, options)


def send(stage: Stage, *messages: dramatiq.Message[Any]) -> None:
    """Store messages as jobs, as another process of the application would."""
    broker = dramatiq.brokers.stub.StubBroker()
    dramatiq.broker.global_broker, before = broker, dramatiq.broker.global_broker
    try:
        with stage.box.dialect.connection(), stage.box.database.atomic():
            for each in messages:
                store_message(stage.box, broker, each)
    finally:
        dramatiq.broker.global_broker = before


def numbers(ids: list[UUID]) -> Counter[int]:
    return Counter(id.int for id in ids)


def test_many_jobs_run_once_each(stage: Stage) -> None:
    send(stage, *(message("work", number) for number in range(1, 201)))
    stage.up(APP)
    stage.wait_until_all("delivered")
    assert numbers(stage.ended()) == dict.fromkeys(range(1, 201), 1)


def test_jobs_that_wait_are_not_lost_with_the_process(stage: Stage) -> None:
    gate = stage.folder / "gate"
    send(stage, *(message("wait", number, str(gate)) for number in range(1, 31)))
    up = stage.up(APP)
    stage.wait_for(lambda: len(stage.began()) >= 2, "some are running")
    up.kill()
    gate.touch()
    stage.up(APP)
    stage.wait_until_all("delivered")
    assert set(numbers(stage.ended())) == set(range(1, 31))


def test_a_clean_stop_finishes_what_runs_and_gives_the_rest_back(stage: Stage) -> None:
    gate = stage.folder / "gate"
    send(stage, *(message("wait", number, str(gate)) for number in range(1, 31)))
    up = stage.up(APP)
    stage.wait_for(lambda: len(stage.began()) >= 2, "some are running")
    up.signal(signal.SIGTERM)
    stage.wait_for(lambda: "stopping" in up.said(), "it has heard the signal")
    gate.touch()
    assert up.wait() == 0
    ran = stage.ended()
    assert stage.statuses() == {"delivered": len(ran), "pending": 30 - len(ran)}
    assert {attempts for status, attempts in stage.rows("status", "attempts") if status == "pending"} == {0}
    stage.up(APP)
    stage.wait_until_all("delivered")
    assert numbers(stage.ended()) == dict.fromkeys(range(1, 31), 1)


def test_a_retry_of_dramatiq_survives_the_process(stage: Stage) -> None:
    gate = stage.folder / "gate"
    send(stage, message("fail_at_first", 1, str(gate), max_retries=50, min_backoff=2_000, max_backoff=2_000))
    up = stage.up(APP)
    stage.wait_for(lambda: stage.statuses() == {"delivered": 1, "pending": 1}, "the retry is stored")
    up.kill()
    gate.touch()
    stage.up(APP)
    stage.wait_until_all("delivered")
    assert numbers(stage.ended()) == {1: 1}


def test_the_next_step_of_a_pipeline_survives_the_process(stage: Stage) -> None:
    gate = stage.folder / "gate"
    second = message("step", 2, str(gate))
    send(stage, message("step", 1, str(gate), pipe_target=second.asdict()))
    up = stage.up(APP)
    stage.wait_for(lambda: len(stage.began()) == 2, "the second step runs")
    stage.wait_for(lambda: stage.statuses().get("delivered") == 1, "the first step is settled, so it is not run again")
    up.kill()
    gate.touch()
    stage.up(APP)
    stage.wait_until_all("delivered")
    assert numbers(stage.ended()) == {1: 1, 2: 1}


def test_without_handlers_actors_are_enough_to_start(stage: Stage, tmp_path: Path) -> None:
    up = stage.up(APP)
    up.signal(signal.SIGTERM)
    assert up.wait() == 0
