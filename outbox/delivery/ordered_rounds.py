"""Deliver a batch with ordered events in rounds: first the events that are free, then those that waited for others.

Several batches are in flight at a time. One may be delivering the first event of a key while another has the next one.
So a drain waits a little for the other batch, which takes milliseconds if the destination is quick. Otherwise it would
park events that are due again at once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from outbox.delivery.batch import Batch
from outbox.delivery.context import DeliveryContext
from outbox.delivery.ordering import LONGEST_WAIT_SECONDS, KeyedPlans, Plan
from outbox.destinations.recorded_destinations import Snapshot
from outbox.throttle.delivery_mode import DeliveryMode

# How long to wait before looking again. A batch of another process can't send a signal.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.002, 0.016


def rounds(
    context: DeliveryContext, batch: Batch, plans: list[Plan], recorded: Snapshot, mode: DeliveryMode
) -> Iterator[list[Plan]]:
    """Yield the events to deliver now, each with its destinations, until all are delivered or recorded as waiting.

    The first round has the events without keys, too, and those that go to no destination now: the latter hold back
    later events of their key all the same. Only a drain waits for other batches.
    """
    waits = mode is DeliveryMode.DRAIN
    seen = context.settled.count
    keyed = KeyedPlans(context, batch, [plan for plan in plans if plan[0].event.is_ordered], recorded)
    others = [plan for plan in plans if not plan[0].event.is_ordered or not plan[1]]
    yield [*others, *keyed.decide(may_wait=waits)]
    ends_at, pause = time.monotonic() + LONGEST_WAIT_SECONDS, FIRST_PAUSE_SECONDS
    while keyed.has_undecided:
        context.settled.wait(seen, pause)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        seen = context.settled.count
        may_wait = time.monotonic() < ends_at and not context.stopping.is_set()
        if not may_wait:
            # What the batch waits for may be due before the scan position, where no claim looks for it now.
            context.scan_position.batch_ended_at(None)
        yield keyed.decide(may_wait=may_wait)
