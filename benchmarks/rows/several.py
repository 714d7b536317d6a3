"""Draining events that two and three handlers get, beside the same drain with one handler."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.ground import Ground
from benchmarks.refusers import HANDLERS, NOTHING
from benchmarks.row import OURS, Row, Sample, at_least

ONE = "one handler"
ROWS = {
    2: Row("drain to two handlers", "events/s", at_least(0.85, ONE)),
    3: Row("drain to three handlers", "events/s", at_least(0.7, ONE)),
}


def measure(ground: Ground) -> Iterator[Sample]:
    for count, row in ROWS.items():
        for side in ground.in_turn(OURS, ONE):
            yield Sample(row, side, drained(ground, count if side == OURS else 1))


def drained(ground: Ground, handlers: int) -> float:
    variables = {HANDLERS: ",".join([NOTHING] * handlers)}
    with ground.site() as site, site.worker("benchmarks.refusers", variables=variables):
        site.warm_up()
        site.fill(ground.size.events)
        site.wake()
        site.wait_until_drained()
        return site.delivered_per_second()
