"""The programs that tests start end with them, and nothing else does."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import Program
from tests.support.servers import alive, wait_until

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]
WITH_A_CHILD = [
    sys.executable,
    "-c",
    "import subprocess, sys; subprocess.run([sys.executable, *sys.argv[1:]])",
    *SLEEP[1:],
]


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(SLEEP) as process:
        yield process
        process.kill()


def test_ends_with_its_children(tmp_path: Path) -> None:
    program = Program(WITH_A_CHILD, os.environ, tmp_path / "output")
    assert wait_until(lambda: len(program.family()) == 2)
    family = program.family()
    program.kill()
    assert not any(alive(pid) for pid in family)


def test_does_not_end_a_process_that_was_given_the_id_of_one_of_its_own(
    tmp_path: Path, stranger: subprocess.Popen[bytes]
) -> None:
    program = Program(SLEEP, os.environ, tmp_path / "output")
    program._known[stranger.pid] = "an earlier start"
    program.kill()
    assert alive(stranger.pid)


def test_does_not_end_the_children_of_a_process_that_was_given_its_id(
    tmp_path: Path, stranger: subprocess.Popen[bytes]
) -> None:
    program = Program([sys.executable, "-c", ""], os.environ, tmp_path / "output")
    program.wait()
    program.pid = os.getpid()
    program.kill()
    assert alive(stranger.pid)
