"""What emit, claim and settle cost in a table with many delivered events, beside one with few."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

import outbox
from benchmarks.bare import AUDIENCE
from benchmarks.ground import Ground
from benchmarks.row import Row, Sample, at_most
from benchmarks.site import EVENT_TYPE, PAYLOAD, Site
from outbox.delivery.batch import Batch
from outbox.delivery.claim import claim

BATCH = 100
BLOCKS = 20
FEW = "few delivered"
MOST = 1.2
# Building indexes at the end is faster than keeping them while a table grows.
INDEXES = ("idx_outbox_aggregate_id", "idx_outbox_pending_next", "idx_outbox_failed")


def measure(ground: Ground) -> Iterator[Sample]:
    """In blocks by turns. What other measurements left behind is written to the disk before."""
    few, many = ground.size.few_delivered, ground.size.many_delivered
    sites = {
        few_side(few): ground.kept("few", lambda site: fill(site, few)),
        many_side(many): ground.kept("many", lambda site: fill(site, many)),
    }
    for site in sites.values():
        site.connection.execute("CHECKPOINT")
        block(site)
    taken: dict[tuple[str, str], list[float]] = {}
    for _ in range(BLOCKS):
        for side in ground.in_turn(*sites):
            for step, seconds in block(sites[side]).items():
                taken.setdefault((step, side), []).append(seconds * 1e3)
    for (step, side), milliseconds in taken.items():
        title = f"{step} of {BATCH}, {many:,} delivered events in the table"
        row = Row(title, "ms", at_most(MOST, few_side(few)), ours=many_side(many))
        yield Sample(row, side, statistics.median(milliseconds))


def few_side(count: int) -> str:
    return f"with {count:,}"


many_side = few_side


def fill(site: Site, delivered: int) -> None:
    definitions = [
        definition
        for (definition,) in site.connection.execute(
            "SELECT indexdef FROM pg_indexes WHERE indexname = ANY (%s)", (list(INDEXES),)
        )
    ]
    for index in INDEXES:
        site.connection.execute(f"DROP INDEX IF EXISTS {index}".encode())
    site.fill(delivered, status="delivered")
    for definition in definitions:
        site.connection.execute(definition)
    site.connection.execute("VACUUM ANALYZE outbox_event")


def block(site: Site) -> dict[str, float]:
    """Seconds by step."""
    box = site.box
    with box.database.atomic():
        emitted = timed(lambda: [box.emit("Bench", 0, EVENT_TYPE, PAYLOAD, idempotency_key=outbox.UNIQUE)
                                 for _ in range(BATCH)])  # fmt: skip
    batches: list[Batch | None] = []
    claimed = timed(lambda: batches.append(claim(box.delivery, BATCH)))
    batch = batches[0]
    if batch is None or len(batch.events) != BATCH:
        raise RuntimeError("not as many were claimed as were emitted")
    ids = box.dialect.row_ids([event.row_id for event in batch.events])
    settled = timed(lambda: box.dialect.run(box.dialect.statements.delivered, (AUDIENCE, None, ids, batch.lease_id)))
    return {"emit": emitted, "claim": claimed, "settle": settled}


def timed(call: Callable[[], object]) -> float:
    began_at = time.perf_counter()
    call()
    return time.perf_counter() - began_at
