"""Draining with handlers that do nothing, by real workers; beside the bare loop, and beside peers if asked for.

Each worker process claims OUTBOX_DRAINS batches at a time. The bare loop has as many connections: a process for each
worker process, with a thread for each of its batches. Both use the same batch size.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks import bare
from benchmarks.ground import Ground
from benchmarks.peers.catalogue import IN_PYTHON, PEERS, PeerUnavailable
from benchmarks.row import OURS, Row, Sample, at_least
from outbox.settings import Settings

BARE = "bare loop"
ROWS = {
    1: Row("drain, one worker process", "events/s", at_least(0.75, BARE)),
    2: Row("drain, two worker processes", "events/s", at_least(0.75, BARE)),
}
PEER_ROWS = {
    1: Row("drain, one process, beside others", "events/s", at_least(1, *IN_PYTHON)),
    2: Row("drain, two processes, beside others", "events/s", at_least(1, *IN_PYTHON)),
}


def measure(ground: Ground) -> Iterator[Sample]:
    for processes, row in ROWS.items():
        for side in ground.in_turn(OURS, BARE, *(PEERS if ground.peers else ())):
            if side == BARE:
                yield Sample(row, side, loop(ground, processes))
            elif side == OURS:
                rate = ours(ground, processes)
                yield Sample(row, side, rate)
                if ground.peers:
                    yield Sample(PEER_ROWS[processes], side, rate)
            else:
                yield drained_by(ground, side, processes)


def drained_by(ground: Ground, peer: str, processes: int) -> Sample:
    try:
        return Sample(PEER_ROWS[processes], peer, PEERS[peer].drain(ground, processes))
    except PeerUnavailable as error:
        return Sample(PEER_ROWS[processes], peer, None, str(error))


def ours(ground: Ground, processes: int) -> float:
    with ground.site() as site, site.worker("benchmarks.handlers", processes):
        site.warm_up()
        site.fill(ground.size.events)
        site.wake()
        site.wait_until_drained()
        return site.delivered_per_second()


def loop(ground: Ground, processes: int) -> float:
    settings = Settings()
    with ground.site() as site:
        with bare.loops(processes, site.url, settings.batch_size, settings.drains):
            site.fill(ground.size.events)
        return site.delivered_per_second()
