"""How long fifty healthy webhooks wait while a fifty-first hangs: `python -m benchmarks.isolation [SECONDS]`.

Events are committed one by one, each for one endpoint in turn, at a steady rate, and delivered by real workers on a
throw-away PostgreSQL and Redis. Rounds with and without the hanging endpoint take turns. It tells the time from just
before the commit to the arrival at the endpoint.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import outbox
from benchmarks.endpoints import ADDRESS, HANGING, HEALTHY
from tests.servers import find_postgres, find_redis

PER_SECOND = 100
ROUNDS = 3
SECONDS = 30.0
WARM_UP_SECONDS = 3.0
ROUND = "round"


def main(seconds: float = SECONDS) -> None:
    """Rounds in turns, each in a process of its own."""
    rounds: dict[bool, list[list[float]]] = {False: [], True: []}
    with find_postgres() as postgres, find_redis() as redis:
        for number in range(ROUNDS):
            for hanging in (False, True) if number % 2 == 0 else (True, False):
                name = f"isolation_{number}_{int(hanging)}"
                settings = {
                    "OUTBOX_DATABASE_URL": postgres.create_database(name),
                    "OUTBOX_REDIS_URL": redis.url,
                    "OUTBOX_NAMESPACE": name,
                }
                command = [sys.executable, "-m", "benchmarks.isolation", ROUND, str(seconds), *[HANGING] * hanging]
                done = subprocess.run(command, env={**os.environ, **settings}, stdout=subprocess.PIPE, check=True)
                ages = json.loads(done.stdout)
                rounds[hanging].append(ages)
                say(f"round {number + 1}, {'one hangs' if hanging else 'all healthy'}: {told(ages)}")
    healthy, beside = (statistics.median(percentile(ages, 99) for ages in rounds[hanging]) for hanging in rounds)
    say(
        f"99th percentile, median of {ROUNDS} rounds: {healthy * 1e3:.1f} ms all healthy, "
        f"{beside * 1e3:.1f} ms while one hangs, ratio {beside / healthy:.2f}"
    )


def run(seconds: float, *, hanging: bool) -> list[float]:
    """One round; how old the events were when the healthy endpoints got them."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as programs:
        ledger = Path(folder, "ledger")
        receiver = programs.enter_context(program("-m", "benchmarks.receiver", str(ledger)))
        assert receiver.stdout is not None  # noqa: S101  (for the type checker)
        os.environ[ADDRESS] = f"http://127.0.0.1:{int(receiver.stdout.readline())}"
        outbox.create_tables()
        programs.enter_context(program("-m", "dramatiq", "jobs", "benchmarks.endpoints", "-p", "2"))
        programs.enter_context(program("-m", "scheduler"))
        warm = emit(WARM_UP_SECONDS, hanging=False)
        wait_for(ledger, warm)
        wait_for(ledger, warm + emit(seconds, hanging=hanging))
        return [float(line.split()[1]) for line in ledger.read_text().splitlines()[warm:]]


def emit(seconds: float, *, hanging: bool) -> int:
    """Commit one event after another, on time; answers how many went to healthy endpoints."""
    database = outbox.current().database
    endpoints = cycle([*map(str, range(HEALTHY)), *([HANGING] if hanging else [])])
    begun, healthy = time.monotonic(), 0
    for number in range(int(seconds * PER_SECOND)):
        time.sleep(max(0.0, begun + number / PER_SECOND - time.monotonic()))
        endpoint = next(endpoints)
        healthy += endpoint != HANGING
        with database.atomic():
            outbox.emit("Bench", number, f"to.{endpoint}", {"at": time.time()}, idempotency_key=outbox.UNIQUE)
    return healthy


def wait_for(ledger: Path, lines: int) -> None:
    ends_at = time.monotonic() + 60
    while not ledger.exists() or len(ledger.read_text().splitlines()) < lines:
        if time.monotonic() > ends_at:
            sys.exit(f"not all of the {lines} events have arrived")
        time.sleep(0.1)


@contextlib.contextmanager
def program(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()


def percentile(ages: list[float], percent: int) -> float:
    return statistics.quantiles(ages, n=100)[percent - 1]


def told(ages: list[float]) -> str:
    middle, high = statistics.median(ages) * 1e3, percentile(ages, 99) * 1e3
    return f"{len(ages)} events, median {middle:.1f} ms, 99th percentile {high:.1f} ms, most {max(ages) * 1e3:.0f} ms"


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == [ROUND]:
        print(json.dumps(run(float(sys.argv[2]), hanging=HANGING in sys.argv)))
    else:
        main(*map(float, sys.argv[1:2]))
