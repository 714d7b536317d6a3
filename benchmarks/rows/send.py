"""`outbox.send` inside a transaction, beside `emit` of a payload of the same size, and Dramatiq's own `actor.send`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import dramatiq
import dramatiq.broker

import outbox
from benchmarks.actors import nothing_on
from benchmarks.ground import Ground
from benchmarks.row import OURS, Row, Sample, at_most
from benchmarks.site import EVENT_TYPE, PAYLOAD
from outbox.core import Outbox
from outbox.dramatiq.broker import set_up_broker

EMIT, PLAIN = "emit", "actor.send, in no transaction"
ROW = Row("send a job inside a transaction", "µs/job", at_most(1.3, EMIT))
BLOCKS = 10


def measure(ground: Ground) -> Iterator[Sample]:
    """In blocks by turns, each a transaction."""
    with ground.site() as site:
        box = outbox.configure(database=site.make_box().database, publish_seconds=0)
        actor = nothing_on(set_up_broker())
        calls: dict[str, Callable[[int], object]] = {
            OURS: lambda _: outbox.send(actor, PAYLOAD["text"]),
            EMIT: lambda number: outbox.emit("Order", number, EVENT_TYPE, PAYLOAD),
            PLAIN: lambda _: actor.send(PAYLOAD["text"]),
        }
        each = max(1, ground.size.emits // BLOCKS)
        seconds = dict.fromkeys(calls, 0.0)
        for call in calls.values():
            block(box, call, -each, each)
        for number in range(BLOCKS):
            for side in ground.in_turn(*calls):
                seconds[side] += block(box, calls[side], number * each, each)
        box.notifier.flush()
        dramatiq.broker.global_broker = None
        for side, taken in seconds.items():
            yield Sample(ROW, side, taken / (each * BLOCKS) * 1e6)


def block(box: Outbox, call: Callable[[int], object], first: int, count: int) -> float:
    with box.database.atomic():
        began_at = time.perf_counter()
        for number in range(first, first + count):
            call(number)
        return time.perf_counter() - began_at
