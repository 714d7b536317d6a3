"""`emit` inside a transaction, beside the bare INSERT of the same row; without the commit."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from benchmarks.ground import Ground
from benchmarks.insert import INSERT, rows
from benchmarks.row import OURS, Row, Sample, at_most
from benchmarks.site import EVENT_TYPE, PAYLOAD, Site
from outbox.core import Outbox

BARE = "bare INSERT"
ROW = Row("emit inside a transaction", "µs/event", at_most(1.4, BARE))
BLOCKS = 10


def measure(ground: Ground) -> Iterator[Sample]:
    """In blocks by turns, each a transaction."""
    with ground.site() as site:
        box = site.make_box()
        each = max(1, ground.size.emits // BLOCKS)
        ours(box, -each, each)
        bare(box, site, -each, each)
        seconds = {OURS: 0.0, BARE: 0.0}
        for block in range(BLOCKS):
            for side in ground.in_turn(OURS, BARE):
                first = block * each
                seconds[side] += ours(box, first, each) if side == OURS else bare(box, site, first, each)
        for side, taken in seconds.items():
            yield Sample(ROW, side, taken / (each * BLOCKS) * 1e6)


def ours(box: Outbox, first: int, count: int) -> float:
    with box.database.atomic():
        began_at = time.perf_counter()
        for number in range(first, first + count):
            box.emit("Order", number, EVENT_TYPE, PAYLOAD)
        return time.perf_counter() - began_at


def bare(box: Outbox, site: Site, first: int, count: int) -> float:
    parameters = rows(site, first, count, "bare")
    with box.database.atomic():
        connection: Any = box.database.connection()
        began_at = time.perf_counter()
        with connection.cursor() as cursor:
            for row in parameters:
                cursor.execute(INSERT, row)
        return time.perf_counter() - began_at
