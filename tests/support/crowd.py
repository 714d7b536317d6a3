"""Several threads, or several processes, that do something at the same moment, each with a connection of its own."""

import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import peewee

from tests.support.program import ROOT, environment

T = TypeVar("T")

PATIENCE_SECONDS = 60


def at_once(database: peewee.Database, calls: Sequence[Callable[[], T]]) -> list[T | Exception]:
    """Call each in its own thread, all released together: what each returned or raised."""
    barrier = threading.Barrier(len(calls), timeout=PATIENCE_SECONDS)

    def run(call: Callable[[], T]) -> T | Exception:
        database.connect(reuse_if_open=True)
        barrier.wait()
        try:
            return call()
        except Exception as error:
            return error
        finally:
            database.close()

    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(run, calls, timeout=PATIENCE_SECONDS))


def elsewhere(database: peewee.Database, call: Callable[[], T]) -> T:
    """Call it in another thread, through another connection, and wait for it."""
    (result,) = at_once(database, [call])
    if isinstance(result, Exception):
        raise result
    return result


# A program of a crowd: it gets ready, says so, and waits to be told.
_WAITING = """
import sys, outbox
outbox.current()
print("ready", flush=True)
sys.stdin.readline()
"""


def processes_at_once(count: int, code: str, **settings: Any) -> list[str]:
    """Run some Python in so many processes, all released together: what each of them said; none may complain."""
    with contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(_starting(_WAITING + code, **settings)) for _ in range(count)]
        for process in crowd:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in crowd:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        said = [process.communicate(timeout=PATIENCE_SECONDS) for process in crowd]
    assert [(process.returncode, errors) for process, (_, errors) in zip(crowd, said, strict=True)] == [(0, "")] * count
    return [output for output, _ in said]


def _starting(code: str, **settings: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env=environment(**settings),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
