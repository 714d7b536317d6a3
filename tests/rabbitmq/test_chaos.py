"""Chaos with RabbitMQ: the order, the duplicates and the end of every event, while servers and workers are killed."""

from pathlib import Path

import pytest

from tests.chaos import faults
from tests.chaos.run import run
from tests.chaos.schedule import Step
from tests.chaos.world import WORKERS

STEPS = (Step(faults.RABBITMQ_KILLED), Step(faults.CRASHED["after-send"]), Step(faults.RABBITMQ_PAUSED))


def test_every_promise_is_kept_whatever_breaks(tmp_path: Path) -> None:
    verdict = run(tmp_path, 1, STEPS, rabbitmq=True, archivers=WORKERS)
    print(verdict.report())  # noqa: T201 - shown if the test fails
    if verdict.violations or verdict.stuck is not None:
        pytest.fail(verdict.report(), pytrace=False)
    assert len(verdict.account.faults) == len(STEPS)
