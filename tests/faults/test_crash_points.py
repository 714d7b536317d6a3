"""A worker dies at exactly one point between the claim and the settling, and what that costs is known beforehand."""

import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

from outbox import crash_points
from tests.support.processes import BIN, HANDLERS, MakeStage
from tests.support.program import run, run_python


@pytest.mark.parametrize(
    ("point", "events", "twice"),
    [
        (crash_points.AFTER_CLAIM, 20, 0),  # none was begun
        (crash_points.AFTER_SEND, 20, 1),  # the first one was sent
        (crash_points.BEFORE_SETTLE, 1, 1),  # it was sent, and nobody knows
        (crash_points.AFTER_SETTLE, 1, 0),  # all is written
    ],
)
def test_a_death_costs_what_was_sent_and_not_yet_settled(
    make_stage: MakeStage, tmp_path: Path, point: str, events: int, twice: int
) -> None:
    stage = make_stage(lease_seconds=1)
    stage.environment[crash_points.VARIABLE] = str(tmp_path)
    (tmp_path / point).touch()
    ids = stage.emit(events)
    doomed = stage.start("doomed", BIN / "dramatiq", "jobs", HANDLERS, "-p", "1", "-t", "1")
    stage.wait_for(lambda: any(tmp_path.glob(f"{point}.*")), f"the worker dies {point}")
    doomed.kill()  # what is left of it: Dramatiq waits long for a child that died before it was ready

    stage.worker(threads=1)
    stage.scheduler()
    stage.wait_until_all("delivered")
    times = Counter(stage.ended())
    assert set(times) == set(ids)
    assert times.total() - len(times) == twice
    assert len({(entry.id, entry.body) for entry in stage.entries("ended")}) == events


PASS_EVERY_POINT = """
from outbox import crash_points

for name in crash_points.POINTS:
    if crash_points.point is not None:
        crash_points.point(name)
print("alive", crash_points.point)
"""


class TestTheModule:
    def test_does_nothing_without_the_variable(self, tmp_path: Path) -> None:
        for name in crash_points.POINTS:
            (tmp_path / name).touch()
        assert run_python(PASS_EVERY_POINT) == "alive None\n"
        assert sorted(file.name for file in tmp_path.iterdir()) == sorted(crash_points.POINTS)

    def test_does_nothing_while_no_file_asks_for_it(self, tmp_path: Path) -> None:
        assert run_python(PASS_EVERY_POINT, test_crash_points=tmp_path).startswith("alive <function")

    @pytest.mark.parametrize("point", crash_points.POINTS)
    def test_kills_whoever_takes_the_file(self, tmp_path: Path, point: str) -> None:
        (tmp_path / point).touch()
        done = run(sys.executable, "-c", PASS_EVERY_POINT, test_crash_points=tmp_path)
        assert done.returncode == -signal.SIGKILL
        assert "alive" not in done.stdout
        assert not (tmp_path / point).exists()
