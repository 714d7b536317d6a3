"""Deliver events: claim → dispatch → settle.

The same code serves every caller: the Dramatiq actors, inline delivery, the command line, and an application that calls
`process_pending_events` itself. A drain delivers batch after batch until no more events are due.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from outbox.delivery.batch import Batch
from outbox.delivery.claim import claim
from outbox.delivery.context import DeliveryContext
from outbox.delivery.dispatch import dispatch
from outbox.delivery.drain_thread import DrainThread
from outbox.delivery.followers import release_all_overlooked, release_overlooked
from outbox.delivery.recovery import make_due_again
from outbox.delivery.settle import close
from outbox.errors import TransactionOpen
from outbox.telemetry import logs
from outbox.throttle.delivery_mode import DeliveryMode

logger = logging.getLogger(__name__)

# A drain ends after this long and notifies a worker to continue, so that its thread can process other messages, too.
DRAIN_SECONDS = 10.0
# A drain that finds a backlog notifies another worker at once, and then at most this often. Each worker that starts a
# drain notifies more workers in the same way.
NOTIFY_AGAIN_SECONDS = 0.1
# `remaining` is counted up to this number: a larger one says no more than "many".
REMAINING_CAP = 1_000


def deliver_batch(
    context: DeliveryContext,
    size: int,
    mode: DeliveryMode = DeliveryMode.ONE_BATCH,
    on_full_batch: Callable[[], None] = lambda: None,
    thread: DrainThread | None = None,
) -> Batch | None:
    """Claim a batch, deliver it to its destinations, and settle it; return None if nothing is due, or all is paused.

    In a drain, slow destinations may still be running when this returns. Then the thread that ends last settles the
    rest.
    """
    if context.audiences.is_everything_paused():
        logger.debug("everything is paused")
        return None
    # What must happen at the end of the batch, however it ends. The stack runs the last entry first.
    with ExitStack() as in_flight:
        # The quarantine decides whether this claim may take an event whose lease expired: such an event may have
        # killed its worker, so it is delivered without others beside it.
        batch = in_flight.enter_context(
            context.quarantine.claiming(
                lambda expired: claim(context, size, include_expired_leases=expired), context.notifier.notify_in
            )
        )
        if batch is None:
            logger.debug("nothing is due")
            return None
        in_flight.callback(context.leases.stop_renewing, batch)
        # Before renewing stops: settling may have to wait for a locked row, and needs a valid lease.
        in_flight.callback(_complete, context, batch)
        batch.on_slice_end = partial(end_slice, context, batch)
        context.leases.renew_while_in_flight(batch)
        if batch.full:
            on_full_batch()
        completion = dispatch(context, batch, mode, thread)
        # From here on the threads of the batch own the stack: the one that ends last closes it.
        completion.then(in_flight.pop_all().close)
    return batch


def end_slice(context: DeliveryContext, batch: Batch) -> None:
    """Close a batch whose time slice (about a second) is over, and notify a worker of the events given back.

    The lease keeper calls this. A batch may be closed more than once: each time, only what is left is settled.
    """
    if close(context, batch):
        context.notifier.notify()


def _complete(context: DeliveryContext, batch: Batch) -> None:
    """Close the batch, log how many of its events had which outcome, and start the process reports."""
    close(context, batch)
    if context.notifier.runs_in_background:
        context.start_reporting()
    if logger.isEnabledFor(logging.INFO):
        _log_batch(batch)


# What became of the events of a batch, in the order in which it is logged.
COUNTED = ("delivered", "retried", "put_off", "failed", "held_back", "released", "fenced")


def _log_batch(batch: Batch) -> None:
    counts = dict.fromkeys(COUNTED, 0) | batch.counts()
    seconds = time.monotonic() - batch.started_at
    logger.info(
        "batch: %d claimed, %s in %.3f s",
        len(batch.events),
        ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items() if count),
        seconds,
        extra=logs.fields(
            lease_id=batch.lease_id,
            claimed=len(batch.events),
            seconds=round(seconds, 6),
            suspect=batch.from_expired_lease,
            **counts,
        ),
    )


def process_pending_events(context: DeliveryContext, batch_size: int) -> dict[str, int]:
    """Deliver one batch in this thread; return how many events were claimed, and how many remain."""
    with context.dialect.connection():
        _refuse_inside_a_transaction(context)
        batch = deliver_batch(context, batch_size)
        if batch is None and release_all_overlooked(context):
            batch = deliver_batch(context, batch_size)
        if context.registry.failure_hooks:
            context.failure_hooks.flush()
        return {"processed": 0 if batch is None else len(batch.events), "remaining": count_due(context)}


def drain(context: DeliveryContext, seconds: float = DRAIN_SECONDS, thread: DrainThread | None = None) -> int:
    """Deliver batches until one is not full or the time is up; return how many events were claimed.

    If OUTBOX_DRAINS drains are running in this process already, return 0 at once. One of them then claims once more.
    With `thread`, this thread may run the last batch itself.
    """
    claimed = 0
    ends_at = time.monotonic() + seconds
    notify_another = _at_most_every(NOTIFY_AGAIN_SECONDS, context.notifier.notify)
    with context.drain_limit.slot() as slot:
        if slot is None:
            return 0
        with context.drain_failures.watching(), context.dialect.connection():
            _refuse_inside_a_transaction(context)
            if context.is_worker():
                context.recorder.keep_current()
            if thread is not None:
                thread.drains_with(slot)
            while not context.stopping.is_set():
                slot.claim_starts()
                make_due_again(context)
                batch = deliver_batch(context, context.batch_size.current, DeliveryMode.DRAIN, notify_another, thread)
                has_kept = thread is not None and thread.run_kept()
                if batch is not None:
                    claimed += len(batch.events)
                    _adapt_batch_size(context, batch)
                if has_kept:
                    break
                # Not before the first claim, which delivers what has just been committed.
                has_released = context.overlooked_scan.is_due() and release_overlooked(context) > 0
                goes_on = has_released or (batch is not None and (batch.full or batch.has_released))
                if not goes_on and slot.release():
                    break
                if time.monotonic() >= ends_at:
                    context.notifier.notify()  # the workers that were notified before may have finished already
                    break
    return claimed


def _adapt_batch_size(context: DeliveryContext, batch: Batch) -> None:
    events, seconds = batch.speed()
    if events:
        context.batch_size.batch_took(events, seconds)


def _at_most_every(seconds: float, call: Callable[[], None]) -> Callable[[], None]:
    """Return a function that calls `call`, unless it has done so within the last `seconds`."""
    next_at = 0.0

    def limited() -> None:
        nonlocal next_at
        if time.monotonic() >= next_at:
            next_at = time.monotonic() + seconds
            call()

    return limited


def count_due(context: DeliveryContext) -> int:
    """Return how many events are due and not under a valid lease, up to a cap."""
    return int(context.dialect.run(context.dialect.statements.count_due, (REMAINING_CAP,)).fetchone()[0])


def _refuse_inside_a_transaction(context: DeliveryContext) -> None:
    if context.dialect.database.in_transaction() or context.dialect.in_transaction:
        raise TransactionOpen
