"""Whether the application's connection pool is large enough for a worker process.

Peewee's pool raises MaxConnectionsExceeded when all of its connections are in use: at once, or after its `timeout`. A
worker process wants one for each of Dramatiq's threads, one for each handler's call under way, and one that settles.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import peewee
from playhouse import pool

from outbox.destinations.handler import Handler

if TYPE_CHECKING:
    from outbox.core import Outbox

logger = logging.getLogger("outbox")

# Settles what is finished in batches that go on.
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


def pool_size(box: Outbox, threads: int) -> PoolSize | None:
    """Return the pool's size and what a worker with so many Dramatiq threads wants; None where there is no pool."""
    size = _most_connections(box.database)
    if size is None:
        return None
    calls = sum(
        box.settings.drains if each.limits.concurrency is None else each.limits.concurrency
        for each in box.registry.destinations.values()
        if isinstance(each, Handler)
    )
    return PoolSize(size, max(threads, box.settings.drains) + calls + SETTLING)


def advice(found: PoolSize, drains: int) -> str:
    """Return which number to raise, and to what."""
    return (
        f"Raise max_connections of the pool to {found.wanted} or more and give it a timeout "
        f"(PooledPostgresqlDatabase(…, max_connections={found.wanted}, timeout=10)), or lower OUTBOX_DRAINS ({drains})."
    )


def check_pool(box: Outbox, threads: int) -> None:
    """Warn, and publish, that the pool is too small for this worker process."""
    found = pool_size(box, threads)
    box.reporter.pool_size = None if found is None else found.to_json()
    if found is not None and found.too_small:
        logger.warning(
            "the connection pool has %d connections, and this worker may want %d at the same time: handlers wait for "
            "one, and their events are put off. %s",
            found.size,
            found.wanted,
            advice(found, box.settings.drains),
        )


def _most_connections(database: peewee.Database) -> int | None:
    """Peewee's pool takes 0 and None for no limit."""
    if not isinstance(database, pool.PooledDatabase):
        return None
    most: Any = database._max_connections
    return int(most) if most else None
