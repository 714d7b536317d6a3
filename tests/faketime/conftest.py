"""Clocks that are wrong, by libfaketime.

Run by `python3 dev.py test --faketime`; the plain test command leaves this folder alone, and needs no libfaketime.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import pytest

from tests.support.processes import MakeStage, Program, Stage, make_stage

__all__ = ["make_stage"]

FOLDERS = ("usr/lib/*/faketime", "usr/lib/faketime", "usr/local/lib/faketime", "opt/homebrew/lib/faketime")
NAME = "libfaketimeMT*"  # for programs with threads


def find_library() -> str:
    given = os.environ.get("OUTBOX_TEST_FAKETIME")
    found = given or next((str(file) for folder in FOLDERS for file in Path("/").glob(f"{folder}/{NAME}")), None)
    if found is None:
        pytest.fail(
            "no libfaketime found: install it (Debian: apt install faketime), or set OUTBOX_TEST_FAKETIME to its "
            "libfaketimeMT.so.1",
            pytrace=False,
        )
    return found


@pytest.fixture
def stage(make_stage: MakeStage) -> Stage:
    """Leases that end soon, so that a wrong clock has something to get wrong."""
    return make_stage(lease_seconds=2)


class WrongClock(Protocol):
    def __call__(self, offset: str) -> Program: ...


@pytest.fixture
def worker_at(stage: Stage) -> WrongClock:
    """Start a worker whose clock is off: `worker_at("+10m")`."""

    def start(offset: str) -> Program:
        with wrong_clock(stage, offset):
            return stage.worker(threads=1)

    return start


@contextmanager
def wrong_clock(stage: Stage, offset: str) -> Iterator[None]:
    """For what is started inside the block."""
    before = dict(stage.environment)
    # Only the time of day is off, as on a host that is set wrong; how long a second is, is not.
    stage.environment |= {
        "LD_PRELOAD": find_library(),
        "FAKETIME": offset,
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "PYTHONPATH": str(Path(__file__).parent / "interpreter"),
    }
    try:
        yield
    finally:
        stage.environment = before
