"""claim: lease what is due, in one statement, by the database's clock."""

from __future__ import annotations

import time
from operator import attrgetter
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from outbox import crash_points
from outbox.delivery.batch import Batch
from outbox.events.event import Event

if TYPE_CHECKING:
    from outbox.core import Outbox
    from outbox.storage.dialect import Row

# Oldest due first, and in the order of emission among equals.
ORDER = attrgetter("due_at", "seq")


def claim(box: Outbox, size: int, *, include_expired_leases: bool = True) -> Batch | None:
    """Up to `size` due events under a new lease or, if allowed, a single suspect; None when nothing is due."""
    lease_id = uuid4()
    claimed_from = time.monotonic()
    with box.dialect.connection():
        rows = _lease(box, size, lease_id, include_expired_leases=include_expired_leases)
    if not rows:
        return None
    crash_points.point(crash_points.AFTER_CLAIM)
    events = [Event(row) for row in rows]
    events.sort(key=ORDER)
    from_expired_lease = bool(events[0].from_expired_lease)
    if not from_expired_lease:
        box.scan_position.batch_ended_at(events[-1].due_at if len(events) >= size else None)
    box.counters.add(claimed=len(events))
    return Batch(
        lease_id,
        events,
        from_expired_lease=from_expired_lease,
        full=from_expired_lease or len(events) >= size,
        lease_seconds=box.settings.lease_seconds,
        claimed_from=claimed_from,
    )


def _lease(box: Outbox, size: int, lease_id: UUID, *, include_expired_leases: bool) -> list[Row]:
    """From the front on; if that does not make a batch, also what lies before it."""
    seconds = box.settings.lease_seconds
    since = box.scan_position.resume_from(include_expired_leases=include_expired_leases)
    rows: list[Row] = []
    if since is not None:
        rows = box.dialect.claim(size, lease_id, seconds, since=since, include_expired_leases=include_expired_leases)
        if len(rows) >= size or (rows and rows[0][-1]):
            return rows
        include_expired_leases = include_expired_leases and not rows  # a suspect is alone
    began_at = time.monotonic()
    rows += box.dialect.claim(
        size - len(rows),
        lease_id,
        seconds,
        since=box.dialect.earliest_time,
        include_expired_leases=include_expired_leases,
    )
    box.scan_position.full_scan_took(time.monotonic() - began_at, include_expired_leases=include_expired_leases)
    return rows
