"""How fast a long backlog drains beside a short one, and what memory the worker takes over it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from benchmarks.cpu import memory_megabytes
from benchmarks.ground import Ground
from benchmarks.row import Row, Sample, at_least, at_most

LEAST = 0.9
MOST_MEGABYTES = 100


def measure(ground: Ground) -> Iterator[Sample]:
    few, many = ground.size.few_waiting, ground.size.many_waiting
    row = Row(f"backlog of {many:,}, one worker process", "events/s", at_least(LEAST, side(few)), ours=side(many))
    for count in (few, many):
        rate, grown = drain(ground, count)
        yield Sample(row, side(count), rate)
    if ground.size.memory:
        memory = Row(f"memory of a worker draining {many:,}, over its start", "MB", at_most(MOST_MEGABYTES))
        yield Sample(memory, memory.ours, grown)


def side(count: int) -> str:
    return f"{count:,} waiting"


def drain(ground: Ground, count: int) -> tuple[float, float]:
    """Events per second, and by how many megabytes the worker grew at most."""
    with ground.site() as site, site.worker("benchmarks.handlers") as worker:
        site.warm_up()
        site.fill(count)
        before = memory_megabytes(worker.pid)
        seen = [before]
        done = threading.Event()

        def watch() -> None:
            while not done.wait(0.25):
                seen.append(memory_megabytes(worker.pid))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            site.wake()
            site.wait_until_drained()
        finally:
            done.set()
            watcher.join()
        return site.delivered_per_second(), max(seen) - before
