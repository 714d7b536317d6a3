"""`emit_many`, a thousand at a time, beside psycopg's `executemany`; and beside COPY, which can't skip duplicates."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from benchmarks.ground import Ground
from benchmarks.insert import COPY, INSERT, rows
from benchmarks.row import OURS, Row, Sample, at_least
from benchmarks.site import EVENT_TYPE, PAYLOAD, Site
from outbox.core import Outbox

MANY, COPIED = "executemany", "COPY"
ROW = Row("emit_many, inside a transaction", "events/s", at_least(0.85, MANY))
EACH = 1_000


def measure(ground: Ground) -> Iterator[Sample]:
    with ground.site() as site:
        box = site.make_box()
        sides: dict[str, Callable[[Outbox, Site, int, int], float]] = {OURS: ours, MANY: many, COPIED: copied}
        seconds = dict.fromkeys(sides, 0.0)
        for warm_up in sides.values():
            warm_up(box, site, -EACH, EACH)
        for first in range(0, ground.size.events, EACH):
            for side in ground.in_turn(*sides):
                seconds[side] += sides[side](box, site, first, min(EACH, ground.size.events - first))
        for side, taken in seconds.items():
            yield Sample(ROW, side, ground.size.events / taken)


def ours(box: Outbox, site: Site, first: int, count: int) -> float:
    events = [("Order", number, EVENT_TYPE, PAYLOAD) for number in range(first, first + count)]
    with box.database.atomic():
        began_at = time.perf_counter()
        box.emit_many(events)
        return time.perf_counter() - began_at


def many(box: Outbox, site: Site, first: int, count: int) -> float:
    parameters = rows(site, first, count, "many")
    with box.database.atomic():
        connection: Any = box.database.connection()
        began_at = time.perf_counter()
        with connection.cursor() as cursor:
            cursor.executemany(INSERT, parameters)
        return time.perf_counter() - began_at


def copied(box: Outbox, site: Site, first: int, count: int) -> float:
    now = datetime.now(UTC)
    parameters = [(*row, "pending", 0, now, now, now) for row in rows(site, first, count, "copied")]
    with box.database.atomic():
        connection: Any = box.database.connection()
        began_at = time.perf_counter()
        with connection.cursor() as cursor, cursor.copy(COPY) as copy:
            for row in parameters:
                copy.write_row(row)
        return time.perf_counter() - began_at
