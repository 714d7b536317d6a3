"""The outbox on SQLite in one process, beside the bare INSERT, claim and settle with sqlite3."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.ground import Ground
from benchmarks.row import OURS, Row, Sample, at_least, at_most
from outbox.settings import PREFIX

BARE = "bare sqlite3"
PROGRAMS = {OURS: "benchmarks.embedded", BARE: "benchmarks.bare_sqlite"}
LEAST = 0.6
INSIDE = Row("SQLite: emit inside a transaction", "µs/event", at_most(1 / LEAST, BARE))
COMMITTED = Row("SQLite: one event per transaction", "events/s", at_least(LEAST, BARE))
DRAINED = Row("SQLite: drain, in one process with the emitter", "events/s", at_least(LEAST, BARE))
LATENCY = Row("SQLite, idle: commit to handler, median", "ms", at_most(1 / LEAST, BARE))


def measure(ground: Ground) -> Iterator[Sample]:
    for side in ground.in_turn(OURS, BARE):
        with TemporaryDirectory(dir=ground.folder) as folder:
            found = run(ground, PROGRAMS[side], folder)
        yield Sample(INSIDE, side, found["inside"])
        yield Sample(COMMITTED, side, found["committed"])
        yield Sample(DRAINED, side, found["drained"])
        yield Sample(LATENCY, side, statistics.median(found["latencies"]))


def run(ground: Ground, program: str, folder: str) -> dict[str, Any]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    command = [sys.executable, "-m", program, folder, str(ground.size.embedded), str(ground.size.latencies)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found
