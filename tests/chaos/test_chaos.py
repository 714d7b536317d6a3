"""The short form of `python3 dev.py chaos`: every kind of fault once, on real processes, and a balanced account."""

from itertools import islice
from pathlib import Path

import pytest

from tests.chaos import faults
from tests.chaos.run import run
from tests.chaos.schedule import SHORT, schedule


def test_every_promise_is_kept_whatever_breaks(tmp_path: Path) -> None:
    verdict = run(tmp_path, 1, SHORT)
    print(verdict.report())  # noqa: T201 - shown if the test fails
    if not verdict.passed:
        pytest.fail(verdict.report(), pytrace=False)
    assert len(verdict.account.faults) == len(SHORT)


def test_a_seed_decides_what_happens_and_nothing_is_left_out() -> None:
    one_round = len(faults.FAULTS)
    assert list(islice(schedule(7), 100)) == list(islice(schedule(7), 100))
    assert list(islice(schedule(7), 100)) != list(islice(schedule(8), 100))
    assert {step.fault for step in islice(schedule(7), one_round)} == set(faults.FAULTS)
    assert any(step.inside for step in islice(schedule(7), one_round))


def test_the_short_form_has_each_kind_of_fault_once() -> None:
    assert sorted(step.fault for step in SHORT) == sorted(faults.FAULTS)
