"""How long fifty healthy webhooks wait while a fifty-first misbehaves.

    python -m benchmarks.isolation [SECONDS] [httpx|curl]

Events are committed one by one, each for one endpoint in turn, at a steady rate, and delivered by real workers on a
throw-away PostgreSQL and Redis. Rounds take turns: all are healthy, one more hangs, one more sends interim responses
without end. It tells the time from just before the commit to the arrival at the endpoint.
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
from benchmarks.endpoints import ADDRESS, CLIENT, FLOODING, HANGING, HEALTHY, HOSTILE_ADDRESS
from tests.support.servers import find_postgres, find_redis

PER_SECOND = 100
ROUNDS = 3
SECONDS = 30.0
WARM_UP_SECONDS = 3.0
ROUND = "round"
ALL_HEALTHY = "none"
KINDS = {ALL_HEALTHY: "all healthy", HANGING: "one hangs", FLOODING: "one sends 103 for ever"}


def main(seconds: float, client: str = "httpx") -> None:
    """Rounds in turns, each in a process of its own."""
    rounds: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
    with find_postgres() as postgres, find_redis() as redis:
        for number in range(ROUNDS):
            for kind in list(KINDS) if number % 2 == 0 else list(KINDS)[::-1]:
                name = f"isolation_{number}_{kind}"
                settings = {
                    "OUTBOX_DATABASE_URL": postgres.create_database(name),
                    "OUTBOX_REDIS_URL": redis.url,
                    "OUTBOX_NAMESPACE": name,
                    CLIENT: client,
                }
                command = [sys.executable, "-m", "benchmarks.isolation", ROUND, str(seconds), kind]
                done = subprocess.run(command, env={**os.environ, **settings}, stdout=subprocess.PIPE, check=True)
                ages = json.loads(done.stdout)
                rounds[kind].append(ages)
                say(f"round {number + 1}, {KINDS[kind]}: {told(ages)}")
    high = {kind: statistics.median(percentile(ages, 99) for ages in each) for kind, each in rounds.items()}
    for kind, age in high.items():
        say(
            f"99th percentile, median of {ROUNDS} rounds, {client}, {KINDS[kind]}: {age * 1e3:.1f} ms, "
            f"ratio {age / high[ALL_HEALTHY]:.2f}"
        )


def run(seconds: float, kind: str) -> list[float]:
    """One round; how old the events were when the healthy endpoints got them."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as programs:
        ledger = Path(folder, "ledger")
        # Those that misbehave have a process of their own: it is our side that is measured.
        for variable, file in ((ADDRESS, ledger), (HOSTILE_ADDRESS, Path(folder, "hostile"))):
            receiver = programs.enter_context(program("-m", "benchmarks.receiver", str(file)))
            assert receiver.stdout is not None  # noqa: S101  (for the type checker)
            os.environ[variable] = f"http://127.0.0.1:{int(receiver.stdout.readline())}"
        outbox.create_tables()
        programs.enter_context(program("-m", "dramatiq", "jobs", "benchmarks.endpoints", "-p", "2"))
        programs.enter_context(program("-m", "scheduler"))
        warm = emit(WARM_UP_SECONDS, ALL_HEALTHY)
        wait_for(ledger, warm)
        wait_for(ledger, warm + emit(seconds, kind))
        return [float(line.split()[1]) for line in ledger.read_text().splitlines()[warm:]]


def emit(seconds: float, kind: str) -> int:
    """Commit one event after another, on time; answers how many went to healthy endpoints."""
    database = outbox.current().database
    endpoints = cycle([*map(str, range(HEALTHY)), *([] if kind == ALL_HEALTHY else [kind])])
    begun, healthy = time.monotonic(), 0
    for number in range(int(seconds * PER_SECOND)):
        time.sleep(max(0.0, begun + number / PER_SECOND - time.monotonic()))
        endpoint = next(endpoints)
        healthy += endpoint != kind
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
        print(json.dumps(run(float(sys.argv[2]), sys.argv[3])))
    else:
        main(float(sys.argv[1]) if sys.argv[1:] else SECONDS, *sys.argv[2:3])
