"""One event per transaction, with nothing else in it: what peers call enqueueing.

A transaction is three round trips: BEGIN, INSERT, COMMIT. The bare INSERT, and the peers that commit each statement by
itself, have one. So the bare transaction is measured, too, and an emit without a transaction of the application's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg

from benchmarks.ground import Ground
from benchmarks.insert import INSERT, rows
from benchmarks.peers.catalogue import PEERS, PeerUnavailable
from benchmarks.row import OURS, Row, Sample, at_least
from benchmarks.site import EVENT_TYPE, PAYLOAD

BARE = "bare INSERT"
BARE_TRANSACTION = "bare BEGIN, INSERT, COMMIT"
ALONE = "outbox, emit without a transaction around it"
ROW = Row("one event per transaction", "events/s", at_least(0.75, BARE))


def measure(ground: Ground) -> Iterator[Sample]:
    own = {OURS: ours, ALONE: alone, BARE: bare, BARE_TRANSACTION: bare_transaction}
    for side in ground.in_turn(*own, *(PEERS if ground.peers else ())):
        try:
            if side in own:
                yield Sample(ROW, side, own[side](ground))
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


def alone(ground: Ground) -> float:
    with ground.site() as site:
        box = site.make_box()
        box.emit("Order", -1, EVENT_TYPE, PAYLOAD)  # which warns, once
        began_at = time.perf_counter()
        for number in range(ground.size.transactions):
            box.emit("Order", number, EVENT_TYPE, PAYLOAD)
        return ground.size.transactions / (time.perf_counter() - began_at)


def bare(ground: Ground) -> float:
    return _bare(ground, lambda connection, row: connection.execute(INSERT, row))


def bare_transaction(ground: Ground) -> float:
    return _bare(ground, _in_transaction)


def _in_transaction(connection: psycopg.Connection, row: tuple[Any, ...]) -> None:
    connection.execute("BEGIN")
    connection.execute(INSERT, row)
    connection.execute("COMMIT")


def _bare(ground: Ground, insert: Callable[[psycopg.Connection, tuple[Any, ...]], object]) -> float:
    with ground.site() as site:
        parameters = rows(site, 0, ground.size.transactions, "bare")
        began_at = time.perf_counter()
        for row in parameters:
            insert(site.connection, row)
        return ground.size.transactions / (time.perf_counter() - began_at)
