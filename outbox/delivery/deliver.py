"""Delivery is claim → dispatch → settle.

The same code serves every path: a Dramatiq actor, a sweep, inline, the command line, or a call by hand.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from outbox.delivery.batch import Batch
from outbox.delivery.claim import claim
from outbox.delivery.dispatch import dispatch
from outbox.delivery.settle import close
from outbox.errors import TransactionOpen
from outbox.telemetry import logs
from outbox.throttle.delivery_mode import DeliveryMode

if TYPE_CHECKING:
    from outbox.core import Outbox

logger = logging.getLogger("outbox")

# A drain that has gone on for this long hands over to another, so that workers and queues breathe.
DRAIN_SECONDS = 10.0
# A backlog calls for help at once, and then so often: whoever comes calls for more.
RECRUIT_SECONDS = 0.1
# Counting beyond this says nothing that "many" does not.
REMAINING_CAP = 1_000


def deliver_batch(box: Outbox, size: int) -> Batch | None:
    """Claim a batch, hand it to its destinations, write what became of it."""
    return _deliver(box, size, recruit=None)


def _deliver(box: Outbox, size: int, recruit: Callable[[], None] | None) -> Batch | None:
    """The same for a worker: a full batch means more than one worker's share, so `recruit` calls another to help.

    A worker does not wait for what takes long: whoever ends last lands the batch.
    """
    with ExitStack() as flight:
        batch = flight.enter_context(
            box.quarantine.claiming(
                lambda expired: claim(box, size, include_expired_leases=expired), box.notifier.notify_in
            )
        )
        if batch is None:
            logger.debug("nothing is due")
            return None
        try:
            flight.enter_context(box.leases.keeping(batch))
        except BaseException:
            close(box, batch)
            raise
        flight.callback(_land, box, batch)  # under the lease that is kept: writing may have to wait
        if batch.full and recruit is not None:
            recruit()
        mode = DeliveryMode.ONE_BATCH if recruit is None else DeliveryMode.DRAIN
        completion = dispatch(box, batch, mode)
        completion.then(flight.pop_all().close)
    return batch


def _land(box: Outbox, batch: Batch) -> None:
    """Give back what has not begun, settle the rest, and say what became of the batch."""
    close(box, batch)
    if box.notifier.runs_in_background:
        box.reporter.start()
    counts = dict.fromkeys(("delivered", "retried", "failed", "released", "fenced"), 0) | batch.tally()
    seconds = time.monotonic() - batch.started_at
    logger.info(
        "batch: %d claimed, %s in %.3f s",
        len(batch.events),
        ", ".join(f"{count} {name}" for name, count in counts.items() if count),
        seconds,
        extra=logs.fields(
            lease_id=batch.lease_id,
            claimed=len(batch.events),
            seconds=round(seconds, 6),
            suspect=batch.from_expired_lease,
            **counts,
        ),
    )


def process_pending_events(box: Outbox, batch_size: int) -> dict[str, int]:
    """One batch, in this thread."""
    with box.dialect.connection():
        _refuse_inside_a_transaction(box)
        batch = deliver_batch(box, batch_size)
        return {"processed": 0 if batch is None else len(batch.events), "remaining": count_due(box)}


def drain(box: Outbox, seconds: float = DRAIN_SECONDS) -> int:
    """Deliver until a claim comes back short or the time is up; answers how many events were claimed.

    If OUTBOX_DRAINS drains are running in this process, return 0 at once: one of them claims once more.
    """
    claimed = 0
    ends_at = time.monotonic() + seconds
    recruit = _at_most_every(RECRUIT_SECONDS, box.notifier.notify)
    with box.drain_limit.slot() as slot:
        if slot is None:
            return 0
        with box.drain_failures.watching(), box.dialect.connection():
            _refuse_inside_a_transaction(box)
            if box.is_worker:
                box.recorder.keep_current()
            while not box.stopping.is_set():
                slot.claim_starts()
                batch = _deliver(box, box.batch_size.current, recruit)
                if batch is not None:
                    claimed += len(batch.events)
                    _adapt_batch_size(box, batch)
                if (batch is None or not batch.full) and slot.release():
                    break
                if time.monotonic() >= ends_at:
                    box.notifier.notify()  # whoever was called before may have come and gone
                    break
    return claimed


def _adapt_batch_size(box: Outbox, batch: Batch) -> None:
    done, seconds = batch.progress()
    if done:
        box.batch_size.batch_took(done, seconds)


def _at_most_every(seconds: float, do: Callable[[], None]) -> Callable[[], None]:
    """The same, but that calls which come sooner after the last one do nothing."""
    next_at = 0.0

    def maybe() -> None:
        nonlocal next_at
        if time.monotonic() >= next_at:
            next_at = time.monotonic() + seconds
            do()

    return maybe


def count_due(box: Outbox) -> int:
    """How many events are due and free, up to a cap."""
    return int(box.dialect.run(box.dialect.statements.count_due, (REMAINING_CAP,)).fetchone()[0])


def _refuse_inside_a_transaction(box: Outbox) -> None:
    if box.database.in_transaction() or box.dialect.in_transaction:
        raise TransactionOpen
