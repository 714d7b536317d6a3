"""claim: lease what is due, in one statement, by the database's clock."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING
from uuid import uuid4

from outbox import crash
from outbox.delivery.batch import Batch
from outbox.event import Event

if TYPE_CHECKING:
    from outbox.core import Outbox


def claim(box: Outbox, size: int, *, suspects: bool = True) -> Batch | None:
    """Up to `size` due events under a new lease or, if allowed, a single suspect; None when nothing is due."""
    lease_id = uuid4()
    claimed_from = time.monotonic()
    with box.dialect.connection():
        rows, suspect = box.dialect.claim(size, lease_id, box.settings.lease_seconds, suspects=suspects)
    if not rows:
        return None
    crash.point(crash.AFTER_CLAIM)
    events = [Event(row, suspect=suspect) for row in rows]
    events.sort(key=lambda event: event.order)
    box.counters.add(claimed=len(events))
    return Batch(
        lease_id,
        events,
        suspect=suspect,
        full=suspect or len(events) >= size,
        lease_seconds=box.settings.lease_seconds,
        claimed_from=claimed_from,
    )
