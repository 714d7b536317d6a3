"""dispatch: give a batch's events to their destinations, outside any transaction.

The batch is split into shares, one for each destination. In a worker each share runs in a thread of its own, so that a
slow destination does not delay the others (`share_threads`). Inline, or with a single destination in a call that waits
for its batch anyway, the shares run one after another in the calling thread.
"""

from __future__ import annotations

from outbox.delivery.batch import Batch, Completion
from outbox.delivery.context import DeliveryContext
from outbox.delivery.plan import plan, plan_after_error, plan_routed
from outbox.delivery.settle import settle
from outbox.delivery.share import Share
from outbox.delivery.share_threads import run_in_threads
from outbox.errors import describe
from outbox.storage.models import EVENT
from outbox.throttle.delivery_mode import DeliveryMode


def dispatch(context: DeliveryContext, batch: Batch, mode: DeliveryMode = DeliveryMode.ONE_BATCH) -> Completion:
    """Deliver the batch and settle its outcomes.

    Return a Completion. It calls the function that is passed to its `then` once no share is running any more. In a
    drain, shares that take longer than a tenth of a second are still running when this returns.
    """
    shares = _split(context, batch)
    settle(context, batch)  # the events that go to no destination now
    if context.uses_threads and (mode is DeliveryMode.DRAIN or len(shares) > 1):
        return run_in_threads(context, batch, shares, mode)
    for share in shares:
        try:
            share.run(mode)
        finally:
            settle(context, batch)
    return Completion(0)


def _split(context: DeliveryContext, batch: Batch) -> list[Share]:
    """Return the shares of the batch; events that go to no destination now are finished at once."""
    shares: dict[str, Share] = {}
    # A batch may come from two claims, which may have seen two versions of the recorded destinations.
    versions = {event.destinations_version for event in batch.events}
    event_types = {event.event_type for event in batch.events if event.kind == EVENT}
    audiences = context.audiences.look_up(versions, event_types)
    now = batch.clock.now()
    for event in batch.events:
        try:
            if event.kind == EVENT:
                delivery, destinations = plan(context, event, audiences[event.event_type], now)
            else:
                delivery, destinations = plan_routed(context, event, now)
        except Exception as error:  # an event that can't be planned must not stop the others
            delivery, destinations = plan_after_error(context, event, now, describe(error)), []
        if not destinations:
            batch.finish(delivery)
        for destination in destinations:
            share = shares.get(destination.name)
            if share is None:
                share = shares[destination.name] = Share(context, batch, destination)
            share.deliveries.append(delivery)
    return list(shares.values())
