"""claim: lease the events that are due, in one statement, by the database's clock.

An event under a valid lease is not due for other workers. A lease that is not renewed expires. So nothing has to be
cleaned up after a worker that died: the next claim takes its events over.
"""

from __future__ import annotations

import time
from operator import attrgetter
from uuid import UUID, uuid4

from outbox import crash_points
from outbox.delivery.batch import Batch
from outbox.delivery.context import DeliveryContext
from outbox.events.event import Event
from outbox.storage.dialect import Row

# The oldest due event first; events due at the same time in the order in which they were emitted.
ORDER = attrgetter("due_at", "seq")


def claim(context: DeliveryContext, size: int, *, include_expired_leases: bool = True) -> Batch | None:
    """Lease up to `size` due events, or one event whose lease expired; return None if nothing is due.

    An event whose lease expired may have killed its worker, so it is claimed alone.
    """
    lease_id = uuid4()
    claimed_from = time.monotonic()
    with context.dialect.connection():
        rows = _lease(context, size, lease_id, include_expired_leases=include_expired_leases)
    if not rows:
        return None
    if crash_points.point is not None:
        crash_points.point(crash_points.AFTER_CLAIM)
    events = [Event(row) for row in rows]
    events.sort(key=ORDER)
    from_expired_lease = bool(events[0].from_expired_lease)
    if not from_expired_lease:
        context.scan_position.batch_ended_at(events[-1].due_at if len(events) >= size else None)
    context.counters.add(claimed=len(events))
    return Batch(
        lease_id,
        events,
        from_expired_lease=from_expired_lease,
        full=from_expired_lease or len(events) >= size,
        lease_seconds=context.settings.lease_seconds,
        claimed_from=claimed_from,
    )


def _lease(context: DeliveryContext, size: int, lease_id: UUID, *, include_expired_leases: bool) -> list[Row]:
    """Lease events from the scan position on and, if they are too few for a batch, by a full scan."""
    dialect, scan_position, seconds = context.dialect, context.scan_position, context.settings.lease_seconds
    since = scan_position.resume_from(include_expired_leases=include_expired_leases)
    rows: list[Row] = []
    if since is not None:
        rows = dialect.claim(size, lease_id, seconds, since=since, include_expired_leases=include_expired_leases)
        if len(rows) >= size or (rows and rows[0][-1]):  # a full batch, or one event from an expired lease
            return rows
        # An event from an expired lease is claimed alone, so not in addition to these rows.
        include_expired_leases = include_expired_leases and not rows
    began_at = time.monotonic()
    rows += dialect.claim(
        size - len(rows),
        lease_id,
        seconds,
        since=dialect.earliest_time,
        include_expired_leases=include_expired_leases,
    )
    scan_position.full_scan_took(time.monotonic() - began_at, include_expired_leases=include_expired_leases)
    return rows
