"""Draining events that are not delivered, beside the same drain of events that are.

Every event is refused; one of its two destinations refuses it; its only destination is unavailable, so that the circuit
breaker opens and most events are put off without a call. The attempts are written to their history, as by default.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.ground import Ground
from benchmarks.refusers import HANDLERS, KEY, NOTHING, REFUSE, UNAVAILABLE
from benchmarks.row import OURS, Row, Sample, at_least

PLAIN = "all are delivered"
WORK = {
    "drain, all refused": (REFUSE,),
    "drain, one of two destinations refuses": (NOTHING, REFUSE),
    "drain, all unavailable": (UNAVAILABLE,),
}
ROWS = {handlers: Row(title, "events/s", at_least(0.5, PLAIN)) for title, handlers in WORK.items()}


def measure(ground: Ground) -> Iterator[Sample]:
    for handlers, row in ROWS.items():
        for side in ground.in_turn(OURS, PLAIN):
            yield Sample(row, side, settled(ground, handlers if side == OURS else (NOTHING,)))


def settled(ground: Ground, handlers: tuple[str, ...]) -> float:
    """Return how many events a second are settled, whatever their outcome."""
    with ground.site() as site, site.worker("benchmarks.refusers", variables={HANDLERS: ",".join(handlers)}):
        site.warm_up()
        site.fill(ground.size.events, key=KEY)
        site.wake()
        site.wait_until_settled()
        return site.settled_per_second()
