"""What OUTBOX_ENCRYPTION_KEYS costs: the same work with and without it, side by side."""

from __future__ import annotations

import time
from collections.abc import Iterator

from benchmarks.ground import Ground
from benchmarks.row import OURS, Row, Sample, at_least, at_most
from benchmarks.site import EVENT_TYPE, PAYLOAD
from outbox.core import Outbox
from outbox.encryption.keys import new_key

PLAIN = "in plain text"
EMIT = Row("emit inside a transaction, encrypted", "µs/event", at_most(1.5, PLAIN))
EMIT_MANY = Row("emit_many of 1,000, encrypted", "µs/event", at_most(2, PLAIN))
DRAIN = Row("drain, one worker process, encrypted", "events/s", at_least(0.7, PLAIN))
BLOCKS = 10
MANY = 1_000


def measure(ground: Ground) -> Iterator[Sample]:
    key = new_key().text
    yield from emitted(ground, key)
    for side in ground.in_turn(OURS, PLAIN):
        yield Sample(DRAIN, side, drained(ground, key, is_encrypted=side == OURS))


def emitted(ground: Ground, key: str) -> Iterator[Sample]:
    """In blocks by turns, each a transaction."""
    with ground.site() as site:
        boxes = {OURS: site.make_box(encryption_keys=key), PLAIN: site.make_box()}
        each = max(1, ground.size.emits // BLOCKS)
        one, many = dict.fromkeys(boxes, 0.0), dict.fromkeys(boxes, 0.0)
        for side, box in boxes.items():
            emit(box, f"warm-up {side}", each)
            emit_many(box, f"warm-up {side}")
        for block in range(BLOCKS):
            for side in ground.in_turn(*boxes):
                one[side] += emit(boxes[side], f"{side} {block}", each)
                many[side] += emit_many(boxes[side], f"{side} {block}")
        for side in boxes:
            yield Sample(EMIT, side, one[side] / (each * BLOCKS) * 1e6)
            yield Sample(EMIT_MANY, side, many[side] / (MANY * BLOCKS) * 1e6)


def emit(box: Outbox, kind: str, count: int) -> float:
    with box.database.atomic():
        began_at = time.perf_counter()
        for number in range(count):
            box.emit(kind, number, EVENT_TYPE, PAYLOAD)
        return time.perf_counter() - began_at


def emit_many(box: Outbox, kind: str) -> float:
    events = [(f"{kind}, many", number, EVENT_TYPE, PAYLOAD) for number in range(MANY)]
    with box.database.atomic():
        began_at = time.perf_counter()
        box.emit_many(events)
        return time.perf_counter() - began_at


def drained(ground: Ground, key: str, *, is_encrypted: bool) -> float:
    """Both workers have the key: what differs is the rows."""
    with ground.site() as site, site.worker("benchmarks.handlers", 1, {"OUTBOX_ENCRYPTION_KEYS": key}):
        site.warm_up()
        box = site.make_box(dispatch="off", encryption_keys=key if is_encrypted else None)
        with box.database.atomic():
            for first in range(0, ground.size.events, MANY):
                numbers = range(first, min(first + MANY, ground.size.events))
                box.emit_many([("Order", number, EVENT_TYPE, PAYLOAD) for number in numbers])
        site.connection.execute("VACUUM ANALYZE outbox_event")
        site.wake()
        site.wait_until_drained()
        return site.delivered_per_second()
