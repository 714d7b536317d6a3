"""Draining jobs into Redis, beside the bare loop of claim, pipelined enqueue and settle, with as many connections."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks import bare
from benchmarks.ground import Ground
from benchmarks.row import OURS, Row, Sample, at_least
from outbox.settings import Settings

BARE = "bare loop with enqueue"
ROW = Row("drain jobs into Redis, one worker process", "jobs/s", at_least(0.7, BARE))


def measure(ground: Ground) -> Iterator[Sample]:
    for side in ground.in_turn(OURS, BARE):
        yield Sample(ROW, side, ours(ground) if side == OURS else loop(ground))


def ours(ground: Ground) -> float:
    options = ("-Q", Settings().queue)
    with ground.site() as site, site.worker("benchmarks.job_worker", options=options):
        site.warm_up(site.fill_jobs)
        site.fill_jobs(ground.size.events)
        site.wake()
        site.wait_until_drained()
        return site.delivered_per_second()


def loop(ground: Ground) -> float:
    settings = Settings()
    with ground.site() as site:
        with bare.loops(1, site.url, settings.batch_size, settings.drains, bare.JOBS, site.redis_url):
            site.fill_jobs(ground.size.events)
        return site.delivered_per_second()
