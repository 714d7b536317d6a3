"""Redis Streams, beside the bare loop of claim, pipelined XADD and settle, with as many connections."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks import bare
from benchmarks.ground import Ground
from benchmarks.row import OURS, Row, Sample, at_least
from benchmarks.tributary import REDIS
from outbox.settings import Settings

BARE = "bare loop with XADD"
ROW = Row("Redis Streams, one worker process", "events/s", at_least(0.8, BARE))


def measure(ground: Ground) -> Iterator[Sample]:
    for side in ground.in_turn(OURS, BARE):
        yield Sample(ROW, side, ours(ground) if side == OURS else loop(ground))


def ours(ground: Ground) -> float:
    with ground.site() as site, site.worker("benchmarks.tributary", variables={REDIS: site.redis_url}):
        site.warm_up()
        site.fill(ground.size.events)
        site.wake()
        site.wait_until_drained()
        return site.delivered_per_second()


def loop(ground: Ground) -> float:
    settings = Settings()
    with ground.site() as site:
        with bare.loops(1, site.url, settings.batch_size, settings.drains, bare.STREAMS, site.redis_url):
            site.fill(ground.size.events)
        return site.delivered_per_second()
