"""The outbox on SQLite in one process, as `outbox up` runs it: `python -m benchmarks.embedded FOLDER EVENTS LATENCIES`.

It says, as JSON: how long an emit took inside a transaction and with a transaction of its own, how many events a second
were drained, and how long each event took from the commit to the handler in an idle process.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import outbox
from benchmarks.site import EVENT_TYPE, PAYLOAD
from outbox.cli.up import workers_and_scheduler
from outbox.core import Outbox
from outbox.events.event import Event
from outbox.settings import Settings

BLOCK = 100
THREADS = 4
PAUSE_SECONDS = 0.02, 0.05
PATIENCE_SECONDS = 60.0
# Delivered events a second, from the first batch's end to the last one's, by the rows' own timestamps.
DELIVERED_PER_SECOND = """
SELECT count(*) FILTER (WHERE delivered_at > began_at) / ((julianday(max(delivered_at)) - julianday(began_at)) * 86400)
FROM outbox_event, (SELECT min(delivered_at) AS began_at FROM outbox_event)
"""
UNFINISHED = "SELECT EXISTS (SELECT 1 FROM outbox_event WHERE next_attempt_at IS NOT NULL)"
EMPTY = "DELETE FROM outbox_event"


def main(folder: str, events: int, latencies: int) -> None:
    os.environ["OUTBOX_DATABASE_URL"] = f"sqlite:///{Path(folder, 'ours.db')}"
    from outbox.dramatiq import wakeup
    from outbox.dramatiq.worker import load_application

    handled: dict[str, int] = {}

    @outbox.handler("*", name="stamp")
    def stamp(event: Event) -> None:
        handled[event.aggregate_id] = time.monotonic_ns()

    load_application((), embedded=True)
    outbox.create_tables()
    box = outbox.current()
    box.database.connect(reuse_if_open=True)
    silent = Outbox(Settings(dispatch="off", publish_seconds=0), database=box.database)
    results: dict[str, Any] = {"inside": inside(silent, events), "committed": committed(silent, events)}
    with workers_and_scheduler(THREADS):
        wakeup.send_sweep()
        wait_until_drained(box)
        results["drained"] = box.dialect.run(DELIVERED_PER_SECOND).fetchone()[0]
        results["latencies"] = one_by_one(box, latencies, handled)
    print(json.dumps(results))


def inside(box: Outbox, events: int) -> float:
    """Return the microseconds that an emit takes inside a transaction."""
    seconds = 0.0
    for first in range(0, events, BLOCK):
        with box.database.atomic():
            began_at = time.perf_counter()
            for number in range(first, first + BLOCK):
                box.emit("Order", number, EVENT_TYPE, PAYLOAD)
            seconds += time.perf_counter() - began_at
    box.dialect.run(EMPTY)
    return seconds / events * 1e6


def committed(box: Outbox, events: int) -> float:
    """Return how many events a second are committed, each in a transaction of its own."""
    began_at = time.perf_counter()
    for number in range(events):
        with box.database.atomic():
            box.emit("Order", number, EVENT_TYPE, PAYLOAD)
    return events / (time.perf_counter() - began_at)


def one_by_one(box: Outbox, events: int, handled: dict[str, int]) -> list[float]:
    """Return the milliseconds from each commit to the handler, with pauses between the commits."""
    chance = random.Random(1)  # noqa: S311  (the same pauses every time)
    committed_at = {}
    for number in range(events):
        time.sleep(chance.uniform(*PAUSE_SECONDS))
        with box.database.atomic():
            box.emit("Idle", f"idle {number}", EVENT_TYPE, PAYLOAD)
        committed_at[f"idle {number}"] = time.monotonic_ns()
    wait_until_drained(box)
    return [(handled[about] - at) / 1e6 for about, at in committed_at.items()]


def wait_until_drained(box: Outbox) -> None:
    ends_at = time.monotonic() + PATIENCE_SECONDS
    while box.dialect.run(UNFINISHED).fetchone()[0]:
        if time.monotonic() > ends_at:
            raise TimeoutError(f"not all events were delivered within {PATIENCE_SECONDS:.0f} s")
        time.sleep(0.02)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
