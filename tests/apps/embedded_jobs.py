"""An application with actors alone, for `outbox up`: each run is entered into the ledger when it begins and ends."""

import os
import time
from pathlib import Path
from typing import Any

import dramatiq

import tests.apps.ledger as handlers


def enter(what: str, job: int) -> None:
    handlers.write(what, id=f"{job:032x}", body="", attempt=1, pid=os.getpid())


@dramatiq.actor(max_retries=0)
def work(job: int, seconds: float = 0.0) -> None:
    enter("began", job)
    time.sleep(seconds)
    enter("ended", job)


@dramatiq.actor(max_retries=0)
def wait(job: int, gate: str) -> None:
    enter("began", job)
    while not Path(gate).exists():
        time.sleep(0.01)
    enter("ended", job)


@dramatiq.actor(max_retries=5, min_backoff=1, max_backoff=1)
def fail_at_first(job: int, gate: str) -> None:
    """Fail until the file exists."""
    enter("began", job)
    if not Path(gate).exists():
        raise ValueError("not yet")
    enter("ended", job)


@dramatiq.actor(max_retries=0)
def step(job: int, gate: str, _: Any = None) -> int:
    """A step of a pipeline: the second one waits."""
    enter("began", job)
    while job > 1 and not Path(gate).exists():
        time.sleep(0.01)
    enter("ended", job)
    return job
