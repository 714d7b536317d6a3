"""dispatch: give a batch's events to their destinations, outside any transaction.

The batch is split into shares, one for each destination. In a worker each share runs in a thread of its own, so that a
slow destination does not delay the others (`share_threads`). Inline, or with a single destination in a call that waits
for its batch anyway, the shares run one after another in the calling thread.
"""

from __future__ import annotations

from outbox.delivery.batch import Batch, Completion
from outbox.delivery.context import DeliveryContext
from outbox.delivery.decrypt import decrypt, plan_encrypted
from outbox.delivery.drain_thread import DrainThread
from outbox.delivery.ordered_rounds import rounds
from outbox.delivery.ordering import Plan
from outbox.delivery.plan import plan, plan_after_error, plan_routed
from outbox.delivery.settle import settle
from outbox.delivery.share import Share
from outbox.delivery.share_threads import run_in_threads
from outbox.errors import describe
from outbox.storage.models import EVENT
from outbox.throttle.delivery_mode import DeliveryMode


def dispatch(
    context: DeliveryContext,
    batch: Batch,
    mode: DeliveryMode = DeliveryMode.ONE_BATCH,
    thread: DrainThread | None = None,
) -> Completion:
    """Deliver the batch and settle its outcomes, or leave that to `thread`, if it keeps the batch.

    Return a Completion. It calls the function that is passed to its `then` once no share is running any more. In a
    drain, shares that take longer than a tenth of a second are still running when this returns.
    """
    completion = Completion(1)  # this function itself: it may start shares in several rounds
    plans = _plan(context, batch)
    if not batch.has_keys:
        _run(context, batch, plans, mode, completion, thread=thread)
    else:
        try:
            for ready in rounds(context, batch, plans, context.audiences.recorded, mode):
                _run(context, batch, ready, mode, completion, thread=thread)
        except BaseException:
            batch.on_overdue()  # interrupts the shares of earlier rounds, too
            raise
    completion.share_ended()
    return completion


def _run(
    context: DeliveryContext,
    batch: Batch,
    plans: list[Plan],
    mode: DeliveryMode,
    completion: Completion,
    *,
    thread: DrainThread | None,
) -> None:
    """Deliver these events, and settle what is finished."""
    shares = _split(context, batch, plans)
    settle(context, batch)  # the events that go to no destination now
    if thread is not None and thread.keep(context, batch, shares, completion):
        return
    if context.uses_threads and (mode is DeliveryMode.DRAIN or len(shares) > 1):
        run_in_threads(context, batch, shares, mode, completion)
        return
    for share in shares:
        try:
            share.run(mode)
        finally:
            settle(context, batch)


def _split(context: DeliveryContext, batch: Batch, plans: list[Plan]) -> list[Share]:
    """Return the shares of the batch; events that go to no destination now are finished at once."""
    shares: dict[str, Share] = {}
    for delivery, destinations in plans:
        if not destinations:
            batch.finish(delivery)
        for destination in destinations:
            share = shares.get(destination.name)
            if share is None:
                share = shares[destination.name] = Share(context, batch, destination)
            share.deliveries.append(delivery)
    return list(shares.values())


def _plan(context: DeliveryContext, batch: Batch) -> list[Plan]:
    """Return each event with the destinations that get it now."""
    # A batch may come from two claims, which may have seen two versions of the recorded destinations.
    versions = {event.destinations_version for event in batch.events}
    event_types = {event.event_type for event in batch.events if event.kind == EVENT}
    audiences = context.audiences.look_up(versions, event_types)
    now = batch.clock.now()
    plans: list[Plan] = []
    for event in batch.events:
        try:
            audience = audiences[event.event_type] if event.kind == EVENT else None
            if event.is_encrypted and (problem := decrypt(context, event)) is not None:
                plans.append((plan_encrypted(context, event, audience, now, problem), ()))
            elif audience is not None:
                plans.append(plan(context, event, audience, now))
            else:
                plans.append(plan_routed(context, event, now))
        except Exception as error:  # an event that can't be planned must not stop the others
            plans.append((plan_after_error(context, event, now, describe(error)), ()))
    return plans
