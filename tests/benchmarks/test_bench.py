"""The bench itself: that it runs, and what it writes. How fast anything is, is no test's business."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from benchmarks.row import OURS, Result, Row, Sample, Target, at_least, at_most
from tests.support.processes import ROOT

ROW = Row("drain", "events/s", at_least(0.75, "bare", "barer"))


def result(row: Row, values: Mapping[str, Sequence[float]]) -> Result:
    made = Result(row)
    for side, given in values.items():
        for value in given:
            made.add(Sample(row, side, value))
    return made


def test_a_run_tells_its_results_in_a_table_for_machines_and_as_a_picture(tmp_path: Path) -> None:
    written, drawn = tmp_path / "bench.json", tmp_path / "bench.svg"
    command = [sys.executable, "-m", "benchmarks", "--smoke", "--only", "emit,drain,in_flight"]
    done = subprocess.run(
        [*command, "--json", written, "--svg", drawn], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = {row["title"]: row for row in json.loads(written.read_text())["rows"]}
    assert list(rows) == [
        "emit inside a transaction",
        "drain, one worker process, batches of 100",
        "drain, processor time, batches of 100",
        "drain, one worker process, batches of 500",
        "drain, processor time, batches of 500",
        "drain, two worker processes, batches of 100",
        "drain, two worker processes, batches of 500",
        "claim of 100, 300 in flight",
    ]
    picture = "".join(ET.parse(drawn).getroot().itertext())  # noqa: S314  (we wrote it)
    for title, row in rows.items():
        assert title in done.stdout
        assert title in picture, title
        assert len(row["medians"]) == 2
        assert all(median > 0 for median in row["medians"].values())
    facts = json.loads(written.read_text())["facts"]
    assert "fsync=on, synchronous_commit=on" in facts["PostgreSQL"]
    assert {"machine", "Redis", "Python", "libraries", "before", "during"} <= set(facts)


def test_a_measurement_that_does_not_exist_is_refused_with_those_that_do() -> None:
    command = [sys.executable, "-m", "benchmarks", "--only", "emit,speed"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "'speed' is none of emit, transaction, " in done.stderr


def test_a_ratio_is_taken_to_the_best_of_what_the_target_names() -> None:
    told = result(ROW, {OURS: [70, 80, 300], "bare": [90, 100, 110], "barer": [50], "peer": [1000]})
    assert told.ratio == pytest.approx(0.8)
    cost = result(Row("emit", "µs", at_most(1.4, "bare", "barer")), {OURS: [150], "bare": [100], "barer": [200]})
    assert cost.ratio == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("target", "value", "met"),
    [
        (at_least(0.75, "bare"), 74, False),
        (at_least(0.75, "bare"), 75, True),
        (at_most(1.4, "bare"), 141, False),
        (at_most(1.4, "bare"), 140, True),
        (at_most(3), 3.1, False),
        (at_most(3), 3, True),
    ],
)
def test_a_target_is_met_up_to_its_bound(target: Target, value: float, met: bool) -> None:
    row = Row("some", "events/s", target)
    assert result(row, {OURS: [value], "bare": [100]}).is_met is met


def test_nothing_is_said_about_a_target_whose_other_side_is_missing() -> None:
    told = result(ROW, {OURS: [70]})
    told.add(Sample(ROW, "bare", None, "could not be installed"))
    assert told.is_met is None
    assert told.missing == {"bare": "could not be installed"}
