"""A scheduler's clock is ten minutes off: periodic jobs run when the database's clock says so, and once."""

import sys
from collections import Counter

import pytest

from tests.faketime.conftest import wrong_clock
from tests.support.processes import Program, Stage

COMMAND = (sys.executable, "-m", "scheduler", "tests.apps.periodic")


def start(stage: Stage) -> Program:
    return stage.start("scheduler", *COMMAND, ready="scheduler started")


@pytest.mark.parametrize("offset", ["+10m", "-10m"])
def test_a_scheduler_with_the_wrong_clock_stores_nothing_early_and_nothing_twice(stage: Stage, offset: str) -> None:
    with wrong_clock(stage, offset):
        wrong = start(stage)
    stored = "SELECT payload->>'scheduled_at', created_at >= (payload->>'scheduled_at')::timestamptz"
    stored += " FROM outbox_event WHERE event_type = 'every-second'"

    def rows() -> list[tuple[str, bool]]:
        with stage.box.dialect.connection():
            return list(stage.box.dialect.run(stored).fetchall())

    stage.wait_for(lambda: len(rows()) >= 3, "it stores runs")
    start(stage)
    stage.wait_for(lambda: len(rows()) >= 6, "both are at work")
    wrong.kill()
    stage.wait_for(lambda: len(rows()) >= 8, "the other one goes on")
    found = rows()
    assert {is_late for _, is_late in found} == {True}
    assert Counter(time for time, _ in found).most_common(1)[0][1] == 1
