"""A worker's clock is ten minutes off, both ways: the database's clock decides, and nothing is early, late or twice."""

import sys
import time
from collections import Counter
from datetime import timedelta
from uuid import UUID

import pytest

from tests.faketime.conftest import WrongClock, wrong_clock
from tests.support.processes import Stage

OFFSETS = ("+10m", "-10m")
both_ways = pytest.mark.parametrize("offset", OFFSETS)


@both_ways
def test_the_clock_is_really_off(stage: Stage, offset: str) -> None:
    with wrong_clock(stage, offset):
        program = stage.start("clock", sys.executable, "-c", "import time; print(time.time())")
    assert program.wait() == 0
    seconds = float(program.said()) - time.time()
    assert (580 < seconds < 620) if offset == "+10m" else (-620 < seconds < -580)


@both_ways
def test_what_is_due_is_delivered_now_and_retried_after_its_backoff(
    stage: Stage, worker_at: WrongClock, offset: str
) -> None:
    stage.scheduler()
    worker_at(offset)
    ids = stage.emit(50) + stage.emit(5, do="fail", times=2)
    stage.wait_until_all("delivered")
    assert Counter(stage.ended()) == Counter(ids)
    assert sorted(attempts for (attempts,) in stage.rows("attempts")) == [1] * 50 + [3] * 5
    # By the table's own timestamps, which the database writes.
    late = (
        "SELECT count(*) FROM outbox_event WHERE delivered_at NOT BETWEEN created_at AND created_at + interval '5 min'"
    )
    with stage.box.dialect.connection():
        assert stage.box.dialect.run(late).fetchone() == (0,)


@both_ways
def test_what_is_due_later_is_not_delivered_before(stage: Stage, worker_at: WrongClock, offset: str) -> None:
    with stage.box.dialect.connection():
        later = stage.box.emit("Thing", "later", "test.emitted", {"do": "pass"}, deliver_after=timedelta(minutes=5)).id
    stage.scheduler()
    worker_at(offset)
    ids = stage.emit(20)
    stage.wait_for(lambda: stage.statuses()["delivered"] == 20, "the others are delivered")
    assert sorted(stage.ended()) == sorted(ids)
    assert later not in stage.began()


@both_ways
def test_nobody_takes_over_what_a_worker_with_the_right_clock_holds(
    stage: Stage, worker_at: WrongClock, offset: str
) -> None:
    gate = stage.gate()
    (held,) = stage.emit(1, do="wait", gate=str(gate))
    stage.worker(threads=1)
    stage.wait_until_begun(held)
    stage.scheduler()
    wrong = worker_at(offset)
    others: list[UUID] = []

    def wrong_one_is_at_work() -> bool:
        others.extend(stage.emit(10))
        pids = set(wrong.family())
        return sum(entry.pid in pids for entry in stage.entries("ended")) > 20

    stage.wait_for(wrong_one_is_at_work, "the worker with the wrong clock delivers")
    # Before the gate opens: by the call that has waited there, its worker would take the destination for a slow one.
    stage.wait_for(lambda: set(others) <= set(stage.ended()), "the other events are delivered")
    assert stage.began().count(held) == 1
    gate.touch()
    stage.wait_until_all("delivered")
    assert Counter(stage.began()) == Counter([held, *others])


@both_ways
def test_a_worker_with_the_wrong_clock_keeps_what_it_holds(stage: Stage, worker_at: WrongClock, offset: str) -> None:
    gate = stage.gate()
    (held,) = stage.emit(1, do="wait", gate=str(gate))
    worker_at(offset)
    stage.wait_until_begun(held)
    ((first,),) = stage.rows("lease_until")
    stage.worker(threads=1)
    stage.scheduler()

    def is_renewed() -> bool:
        ((until,),) = stage.rows("lease_until")
        return until is not None and (until - first).total_seconds() > 2 * stage.settings.lease_seconds

    stage.wait_for(is_renewed, "its lease outlives itself twice")
    gate.touch()
    stage.wait_until_all("delivered")
    assert stage.began() == stage.ended() == [held]
