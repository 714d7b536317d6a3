"""Order per key: what emitting with a key costs, and how fast keyed events are drained.

The keyed drains stand beside the same drain without keys. One has many keys, so that hardly any event waits; one has
few, so that most batches hold several events of a key; one has a single key, which only one batch at a time can
deliver. In the last measurement events wait behind one that has failed, and events of other keys are drained past them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from benchmarks.ground import Ground
from benchmarks.row import OURS, Row, Sample, at_least, at_most
from benchmarks.rows.emit import BLOCKS
from benchmarks.site import EVENT_TYPE, PAYLOAD, Site
from outbox.core import Outbox

WITHOUT, STRICT = "without a key", 'ordered="strict"'
EMIT = Row("emit with an ordering key", "µs/event", at_most(1.15, WITHOUT))
MANY_KEYS, FEW_KEYS = 50_000, 100
DRAINS = {
    keys: Row(f"drain events of {keys:,} keys, one worker process", "events/s", at_least(0.6, WITHOUT))
    for keys in (MANY_KEYS, FEW_KEYS)
}
SINGLE = Row("drain events of a single key, one worker process", "events/s", at_least(5_000))
BLOCKED, FREE = "some wait", "none waits"
BESIDE = Row("drain beside events that wait behind one", "events/s", at_least(0.9, FREE), ours=BLOCKED)
HANDLERS = "benchmarks.handlers"


def measure(ground: Ground) -> Iterator[Sample]:
    yield from emitting(ground)
    for keys, row in DRAINS.items():
        for side in ground.in_turn(OURS, WITHOUT):
            yield Sample(row, side, drained(ground, keys if side == OURS else 0))
    yield Sample(SINGLE, OURS, drained(ground, 1))
    for side in ground.in_turn(BLOCKED, FREE):
        yield Sample(BESIDE, side, beside_waiting(ground, ground.size.few_waiting * 5 if side == BLOCKED else 0))


def emitting(ground: Ground) -> Iterator[Sample]:
    """In blocks by turns, each a transaction."""
    with ground.site() as site:
        box = site.make_box()
        calls: dict[str, Callable[[int], object]] = {
            OURS: lambda number: box.emit("Order", number, EVENT_TYPE, PAYLOAD, ordering_key=f"order:{number}"),
            WITHOUT: lambda number: box.emit("Order", number, "order.paid", PAYLOAD),
            STRICT: lambda number: box.emit("Order", number, "order.sent", PAYLOAD, ordered="strict"),
        }
        each = max(1, ground.size.emits // BLOCKS)
        seconds = dict.fromkeys(calls, 0.0)
        for call in calls.values():
            block(box, call, -each, each)
        for number in range(BLOCKS):
            for side in ground.in_turn(*calls):
                seconds[side] += block(box, calls[side], number * each, each)
        for side, taken in seconds.items():
            yield Sample(EMIT, side, taken / (each * BLOCKS) * 1e6)


def block(box: Outbox, call: Callable[[int], object], first: int, count: int) -> float:
    with box.database.atomic():
        began_at = time.perf_counter()
        for number in range(first, first + count):
            call(number)
        return time.perf_counter() - began_at


def drained(ground: Ground, keys: int) -> float:
    with ground.site() as site, site.worker(HANDLERS):
        site.warm_up()
        site.fill(ground.size.events, keys=keys)
        site.wake()
        site.wait_until_drained()
        return site.delivered_per_second()


def beside_waiting(ground: Ground, waiting: int) -> float:
    """Drain keyed events while others are parked behind an event that has failed."""
    with ground.site() as site, site.worker(HANDLERS):
        site.warm_up()
        if waiting:
            park(site, waiting)
        site.fill(ground.size.events, key="others-", keys=FEW_KEYS)
        site.wake()
        site.wait_for(lambda: left(site) == 0)
        return site.delivered_per_second()


def park(site: Site, count: int) -> None:
    """Have so many events parked behind the first one of their key, which has failed."""
    site.fill(count + 1, keys=1)
    site.connection.execute(
        "UPDATE outbox_event SET status = 'failed', next_attempt_at = NULL, ordering_key = 'blocked', "
        'progress = \'{"nothing": {"state": "failed"}}\' WHERE seq = (SELECT min(seq) FROM outbox_event)'
    )
    site.connection.execute("UPDATE outbox_event SET ordering_key = 'blocked'")
    site.wake()
    site.wait_for(lambda: left(site) == 0)


def left(site: Site) -> int:
    """Return how many events are neither delivered, nor failed, nor parked."""
    row = site.connection.execute(
        "SELECT count(*) FROM outbox_event WHERE next_attempt_at IS NOT NULL AND order_state IS DISTINCT FROM 'waits'"
    ).fetchone()
    return 0 if row is None else int(row[0])
