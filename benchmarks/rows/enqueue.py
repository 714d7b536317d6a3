"""One event per transaction, with nothing else in it: what peers call enqueueing. Only with peers."""

from __future__ import annotations

import time
from collections.abc import Iterator

from benchmarks.ground import Ground
from benchmarks.insert import INSERT, rows
from benchmarks.peers.catalogue import PEERS, PeerUnavailable
from benchmarks.row import OURS, Row, Sample
from benchmarks.site import EVENT_TYPE, PAYLOAD

BARE = "bare INSERT"
ROW = Row("one event per transaction", "events/s")


def measure(ground: Ground) -> Iterator[Sample]:
    if not ground.peers:
        return
    for side in ground.in_turn(OURS, BARE, *PEERS):
        try:
            if side == OURS:
                yield Sample(ROW, side, ours(ground))
            elif side == BARE:
                yield Sample(ROW, side, bare(ground))
            else:
                yield Sample(ROW, side, PEERS[side].enqueue(ground))
        except PeerUnavailable as error:
            yield Sample(ROW, side, None, str(error))


def ours(ground: Ground) -> float:
    with ground.site() as site:
        box = site.make_box()
        box.emit("Order", -1, EVENT_TYPE, PAYLOAD)
        began_at = time.perf_counter()
        for number in range(ground.size.transactions):
            with box.database.atomic():
                box.emit("Order", number, EVENT_TYPE, PAYLOAD)
        return ground.size.transactions / (time.perf_counter() - began_at)


def bare(ground: Ground) -> float:
    with ground.site() as site:
        parameters = rows(site, 0, ground.size.transactions, "bare")
        began_at = time.perf_counter()
        for row in parameters:
            site.connection.execute(INSERT, row)
        return ground.size.transactions / (time.perf_counter() - began_at)
