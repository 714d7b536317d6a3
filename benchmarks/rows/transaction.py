"""A transaction with one write of the application's and one event, beside the same with a bare INSERT.

The wake-up goes to Redis after each commit. That a worker delivers meanwhile, on the same cores, is shown beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.ground import Ground
from benchmarks.insert import INSERT, rows
from benchmarks.row import OURS, Row, Sample, at_least
from benchmarks.site import EVENT_TYPE, PAYLOAD, Site
from outbox.core import Outbox

BARE = "bare INSERT"
DELIVERED_MEANWHILE = "outbox, and a worker delivers"
ROW = Row("transaction: one write, one emit, wake-up", "transactions/s", at_least(0.8, BARE))
WRITE = b"INSERT INTO orders (number, customer) VALUES (%s, %s)"
BLOCKS = 10


def measure(ground: Ground) -> Iterator[Sample]:
    with ground.site() as site:
        site.connection.execute("CREATE TABLE orders (id bigserial PRIMARY KEY, number int, customer text)")
        box = site.make_box()
        event = {OURS: emit(box), BARE: insert(box, site)}
        each = max(1, ground.size.transactions // BLOCKS)
        seconds = {OURS: 0.0, BARE: 0.0}
        for block in range(-1, BLOCKS):
            for side in ground.in_turn(OURS, BARE):
                taken = run(box, event[side], block * each, each)
                seconds[side] += taken if block >= 0 else 0.0  # the first is for warming up
        for side, taken in seconds.items():
            yield Sample(ROW, side, each * BLOCKS / taken)
    with ground.site() as site, site.worker("benchmarks.handlers"):
        site.warm_up()
        site.connection.execute("CREATE TABLE orders (id bigserial PRIMARY KEY, number int, customer text)")
        box = site.make_box()
        run(box, emit(box), -each, each)
        count = each * BLOCKS
        yield Sample(ROW, DELIVERED_MEANWHILE, count / run(box, emit(box), 0, count))
        site.wait_until_drained()


def run(box: Outbox, event: Callable[[int], None], first: int, count: int) -> float:
    began_at = time.perf_counter()
    for number in range(first, first + count):
        with box.database.atomic():
            connection: Any = box.database.connection()
            connection.execute(WRITE, (number, "somebody"))
            event(number)
    return time.perf_counter() - began_at


def emit(box: Outbox) -> Callable[[int], None]:
    def store(number: int) -> None:
        box.emit("Order", number, EVENT_TYPE, PAYLOAD)

    return store


def insert(box: Outbox, site: Site) -> Callable[[int], None]:
    def store(number: int) -> None:
        connection: Any = box.database.connection()
        connection.execute(INSERT, rows(site, number, 1, "bare")[0])

    return store
