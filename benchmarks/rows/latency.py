"""From a commit to the handler, in an idle system; and what an idle worker costs.

Events are committed one by one with pauses between them, long enough that the worker is waiting again.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.cpu import family_seconds
from benchmarks.ground import Ground
from benchmarks.peers.catalogue import PEERS, PeerUnavailable
from benchmarks.row import OURS, Row, Sample, at_most
from benchmarks.site import EVENT_TYPE, PAYLOAD, Site
from benchmarks.stamping import LEDGER

MEDIAN = Row("idle: commit to handler, median", "ms", at_most(0.7))
HIGH = Row("idle: commit to handler, 99th percentile", "ms", at_most(1.5))
IDLE = Row("CPU of an idle worker, all its processes", "%", at_most(1))
WARM_UP = 20


def measure(ground: Ground) -> Iterator[Sample]:
    yield from ours(ground)
    for name, peer in PEERS.items() if ground.peers else ():
        try:
            latencies = peer.latencies(ground)
        except PeerUnavailable as error:
            yield Sample(MEDIAN, name, None, str(error))
            yield Sample(HIGH, name, None, str(error))
        else:
            yield Sample(MEDIAN, name, statistics.median(latencies))
            yield Sample(HIGH, name, percentile(latencies, 99))


def ours(ground: Ground) -> Iterator[Sample]:
    ledger = ground.folder / "ledger"
    ledger.unlink(missing_ok=True)
    with ground.site() as site, site.worker("benchmarks.stamping", variables={LEDGER: str(ledger)}) as worker:
        committed = commit_one_by_one(site, ground.size.latencies + WARM_UP)
        site.wait_for(lambda: len(called(ledger)) >= len(committed))
        handled = called(ledger)
        latencies = [(handled[number] - at) / 1e6 for number, at in committed.items() if number >= WARM_UP]
        yield Sample(MEDIAN, OURS, statistics.median(latencies))
        yield Sample(HIGH, OURS, percentile(latencies, 99))
        time.sleep(min(1.0, ground.size.idle_seconds))
        began_at, before = time.monotonic(), family_seconds(worker.pid)
        time.sleep(ground.size.idle_seconds)
        used = family_seconds(worker.pid) - before
        yield Sample(IDLE, OURS, used / (time.monotonic() - began_at) * 100)


def commit_one_by_one(site: Site, count: int) -> dict[int, int]:
    """When each commit returned."""
    box = site.make_box()
    chance = random.Random(1)  # noqa: S311  (the same pauses every time)
    committed = {}
    for number in range(count):
        time.sleep(chance.uniform(0.02, 0.05))
        with box.database.atomic():
            box.emit("Order", number, EVENT_TYPE, PAYLOAD)
        committed[number] = time.monotonic_ns()
    return committed


def called(ledger: Path) -> dict[int, int]:
    """By number; of an event that came twice, the first time."""
    text = ledger.read_text() if ledger.exists() else ""
    found: dict[int, int] = {}
    for line in text.rpartition("\n")[0].splitlines():
        number, at = line.split()
        found.setdefault(int(number), int(at))
    return found


def percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100)[percent - 1]
