"""Jobs and deaths: each committed job runs, none of a transaction that was rolled back, and with the inbox once."""

import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from outbox import crash_points
from tests.support.processes import BIN, MakeStage, Program, Stage, whole_lines
from tests.support.servers import RedisServer

APP = "tests.apps.charges"


class Charges:
    """The application, its workers and the outbox's."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.committed_file = stage.folder / "committed"
        with stage.box.dialect.connection():
            stage.box.dialect.run("CREATE TABLE effect (id serial PRIMARY KEY, what text)")

    def outbox_worker(self, *, ready: bool = True) -> Program:
        options = ("-Q", "outbox", "-p", "1", "-t", "2")
        said = "ready for action" if ready else None
        return self.stage.start("outbox-worker", BIN / "outbox", "worker", APP, *options, ready=said)

    def own_worker(self) -> Program:
        return self.stage.start("own-worker", BIN / "dramatiq", APP, "-p", "1", "-t", "4", ready="ready for action")

    def place(self, name: int, number: int, *, wait: bool = True) -> Program:
        command = [sys.executable, "-m", "tests.apps.place_charges", str(name), str(number), str(self.committed_file)]
        program = self.stage.start("placing", *command, ready="placing")
        if wait:
            assert program.wait() == 0, program.said()
        return program

    def committed(self) -> Counter[str]:
        return Counter(whole_lines(self.committed_file))

    def effects(self) -> Counter[str]:
        with self.stage.box.dialect.connection():
            return Counter(what for (what,) in self.stage.box.dialect.run("SELECT what FROM effect").fetchall())

    def ran(self) -> Counter[str]:
        return Counter(entry.body for entry in self.stage.entries("ran"))

    def assert_one_effect_each(self) -> None:
        self.stage.wait_until_all("delivered")
        self.stage.wait_for(lambda: self.effects().total() >= len(self.committed()), "every job has had its effect")
        assert self.effects() == self.committed()
        assert set(self.ran()) == set(self.committed())
        assert len({entry.id for entry in self.stage.entries("ran")}) == len(self.committed())


@pytest.mark.parametrize(
    ("point", "jobs", "runs"),
    [
        (crash_points.AFTER_CLAIM, 20, 20),  # committed, and not yet enqueued
        (crash_points.AFTER_SEND, 20, 40),  # enqueued, all in one round trip, and not yet settled
        (crash_points.BEFORE_SETTLE, 20, 40),
        (crash_points.AFTER_SETTLE, 20, 20),
    ],
)
def test_a_death_between_commit_enqueue_and_settle_loses_no_job_and_has_no_second_effect(
    make_stage: MakeStage, tmp_path: Path, point: str, jobs: int, runs: int
) -> None:
    charges = Charges(make_stage(lease_seconds=1))
    stage = charges.stage
    charges.place(1, jobs)
    stage.environment[crash_points.VARIABLE] = str(tmp_path)
    (tmp_path / point).touch()
    doomed = charges.outbox_worker(ready=False)
    stage.wait_for(lambda: any(tmp_path.glob(f"{point}.*")), f"the worker dies {point}")
    doomed.kill()

    charges.own_worker()
    charges.outbox_worker()
    stage.scheduler()
    charges.assert_one_effect_each()
    stage.wait_for(lambda: charges.ran().total() >= runs, "the jobs that were enqueued twice have run twice")
    assert charges.ran().total() == runs


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


def test_while_redis_is_gone_jobs_wait_and_none_costs_an_attempt(make_stage: MakeStage, own_redis: RedisServer) -> None:
    charges = Charges(make_stage(redis_url=own_redis.url))
    stage = charges.stage
    charges.outbox_worker()
    charges.own_worker()
    charges.place(1, 20)
    charges.assert_one_effect_each()
    own_redis.kill()
    charges.place(2, 50)
    error = "SELECT count(*) FROM outbox_event WHERE status = 'pending' AND error_message IS NOT NULL"

    def tried() -> int:
        with stage.box.dialect.connection():
            return int(stage.box.dialect.run(error).fetchone()[0])

    stage.wait_for(lambda: tried() > 0, "a worker has tried to enqueue")
    assert stage.statuses()["pending"] == 50
    own_redis.start()
    stage.scheduler()
    charges.assert_one_effect_each()
    assert {attempts for (attempts,) in stage.rows("attempts")} == {1}


def test_of_thousands_of_jobs_each_has_one_effect_though_workers_are_killed_at_random(make_stage: MakeStage) -> None:
    number, deaths = 1_000, 4
    charges = Charges(make_stage(lease_seconds=1, max_attempts=1_000))
    stage, chance = charges.stage, random.Random(7)  # noqa: S311 - nothing secret
    kinds = (charges.outbox_worker, charges.own_worker)
    workers = [kind() for kind in kinds for _ in range(2)]
    stage.scheduler()
    placing = [charges.place(name, number // 2, wait=False) for name in (1, 2)]
    for death in range(1, deaths + 1):
        enough = number * death // (deaths + 2)
        stage.wait_for(lambda enough=enough: charges.ran().total() >= enough, f"{enough} runs")  # type: ignore[misc]
        chosen = chance.randrange(len(workers))
        workers[chosen].kill()
        workers[chosen] = kinds[chosen // 2]()
    assert [program.wait() for program in placing] == [0, 0]
    assert len(charges.committed()) == number
    charges.assert_one_effect_each()
