"""A claim while many events are in flight, claimed by others and not yet settled; beside one with none in flight."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from uuid import uuid4

from benchmarks import bare
from benchmarks.ground import Ground
from benchmarks.row import Row, Sample, at_most
from benchmarks.site import Site
from outbox.delivery.claim import claim

BATCH = 100
CLAIMS = 30
NONE = "none in flight"


def measure(ground: Ground) -> Iterator[Sample]:
    many = f"{ground.size.in_flight:,} in flight"
    row = Row(f"claim of {BATCH}, {many}", "ms", at_most(2, NONE), ours=many)
    for side in ground.in_turn(NONE, many):
        with ground.site() as site:
            site.fill(ground.size.in_flight + BATCH * (CLAIMS + 1))
            if side == many:
                bare.claim(site.connection, ground.size.in_flight, uuid4())
                site.connection.execute("VACUUM ANALYZE outbox_event")
            yield Sample(row, side, statistics.median(claims(site)) * 1e3)


def claims(site: Site) -> Iterator[float]:
    """Each batch is settled before the next: at most one of our own is in flight."""
    box = site.box
    claim(box.delivery, BATCH)
    for _ in range(CLAIMS):
        began_at = time.perf_counter()
        batch = claim(box.delivery, BATCH)
        yield time.perf_counter() - began_at
        if batch is None:
            return
        ids = box.dialect.row_ids([event.row_id for event in batch.events])
        box.dialect.run(box.dialect.statements.delivered, (1, None, ids, batch.lease_id))
