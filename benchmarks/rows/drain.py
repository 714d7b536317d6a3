"""Draining with handlers that do nothing, by real workers; beside the bare loop, and beside peers if asked for.

Each worker process claims OUTBOX_DRAINS batches at a time. The bare loop has as many connections: a process for each
worker process, with a thread for each of its batches. Both use the same batch size: the usual one, and a larger one, as
it is right for handlers that do nothing. With that one we stand beside the peers, who have their fast settings, too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from benchmarks import bare
from benchmarks.cpu import family_seconds
from benchmarks.ground import Ground
from benchmarks.peers.catalogue import IN_PYTHON, PEERS, PeerUnavailable
from benchmarks.row import OURS, Row, Sample, at_least
from outbox.settings import Settings

BARE = "bare loop"
USUAL, LARGE = Settings().batch_size, 500
BATCHES = (USUAL, LARGE)
WORKERS = {1: "one worker process", 2: "two worker processes"}
ROWS = {
    (processes, batch): Row(f"drain, {workers}, batches of {batch}", "events/s", at_least(0.7, BARE))
    for processes, workers in WORKERS.items()
    for batch in BATCHES
}
# All of PostgreSQL, Redis and workers together: how many cores so many events a second take.
COSTS = {batch: Row(f"drain, processor time, batches of {batch}", "µs/event") for batch in BATCHES}
PEER_ROWS = {
    1: Row("drain, one process, beside others", "events/s", at_least(1, *IN_PYTHON)),
    2: Row("drain, two processes, beside others", "events/s", at_least(1, *IN_PYTHON)),
}


def measure(ground: Ground) -> Iterator[Sample]:
    for (processes, batch), row in ROWS.items():
        with_peers = ground.peers and batch == LARGE
        for side in ground.in_turn(OURS, BARE, *(PEERS if with_peers else ())):
            if side in PEERS:
                yield drained_by(ground, side, processes)
                continue
            rate, cost = (ours if side == OURS else loop)(ground, processes, batch)
            yield Sample(row, side, rate)
            if processes == 1:
                yield Sample(COSTS[batch], side, cost)
            if with_peers and side == OURS:
                yield Sample(PEER_ROWS[processes], side, rate)


def drained_by(ground: Ground, peer: str, processes: int) -> Sample:
    try:
        return Sample(PEER_ROWS[processes], peer, PEERS[peer].drain(ground, processes))
    except PeerUnavailable as error:
        return Sample(PEER_ROWS[processes], peer, None, str(error))


def ours(ground: Ground, processes: int, batch: int) -> tuple[float, float]:
    variables = {"OUTBOX_BATCH_SIZE": str(batch)}
    with ground.site() as site, site.worker("benchmarks.handlers", processes, variables):
        site.warm_up()
        site.fill(ground.size.events)
        used = family_seconds(os.getpid())
        site.wake()
        site.wait_until_drained()
        return site.delivered_per_second(), microseconds_each(ground, used)


def loop(ground: Ground, processes: int, batch: int) -> tuple[float, float]:
    with ground.site() as site:
        with bare.loops(processes, site.url, batch, Settings().drains):
            site.fill(ground.size.events)
            used = family_seconds(os.getpid())
        return site.delivered_per_second(), microseconds_each(ground, used)


def microseconds_each(ground: Ground, used: float) -> float:
    return (family_seconds(os.getpid()) - used) / ground.size.events * 1e6
