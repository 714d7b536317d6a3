"""Check that the application's connection pool is large enough for a worker process.

Peewee's pool raises MaxConnectionsExceeded when all of its connections are in use: at once, or after its `timeout`. A
worker process wants a connection for each of Dramatiq's threads, on Redis one for each thread that listens for
wake-ups, one for each running call of a handler, and one for the threads that settle. The Dramatiq middleware checks
the pool when a worker starts. The worker's report contains the numbers, and `outbox doctor` checks them, too.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import peewee
from playhouse import pool

from outbox.destinations.handler import Handler
from outbox.destinations.registry import Registry

logger = logging.getLogger(__name__)

# Used by the threads that settle the finished events of batches that still run.
SETTLING = 1


@dataclass(frozen=True, slots=True)
class PoolSize:
    """How many connections the pool has at most, and how many this process may want at the same time."""

    size: int
    wanted: int

    @property
    def too_small(self) -> bool:
        return self.size < self.wanted

    def to_json(self) -> dict[str, int]:
        return {"size": self.size, "wanted": self.wanted}


def pool_size(database: peewee.Database, registry: Registry, *, drains: int, threads: int) -> PoolSize | None:
    """Return the pool's size and how many connections a worker may want; None if the database has no limited pool.

    `drains` is OUTBOX_DRAINS, `threads` the number of Dramatiq's threads and of those that listen for wake-ups.
    """
    size = _most_connections(database)
    if size is None:
        return None
    calls = sum(
        drains if each.limits.concurrency is None else each.limits.concurrency
        for each in registry.destinations.values()
        if isinstance(each, Handler)
    )
    return PoolSize(size, max(threads, drains) + calls + SETTLING)


def advice(found: PoolSize, drains: int) -> str:
    """Return which number to raise, and to what."""
    return (
        f"Raise max_connections of the pool to {found.wanted} or more and give it a timeout "
        f"(PooledPostgresqlDatabase(…, max_connections={found.wanted}, timeout=10)), or lower OUTBOX_DRAINS ({drains})."
    )


def check_pool(database: peewee.Database, registry: Registry, *, drains: int, threads: int) -> PoolSize | None:
    """Return the same as `pool_size`, and log a warning if the pool is too small."""
    found = pool_size(database, registry, drains=drains, threads=threads)
    if found is not None and found.too_small:
        logger.warning(
            "the connection pool has %d connections, and this worker may want %d at the same time: handlers wait for "
            "one, and their events are put off. %s",
            found.size,
            found.wanted,
            advice(found, drains),
        )
    return found


def _most_connections(database: peewee.Database) -> int | None:
    """Return the limit of Peewee's pool, where 0 and None mean that there is none."""
    if not isinstance(database, pool.PooledDatabase):
        return None
    most: Any = database._max_connections
    return int(most) if most else None
