"""dispatch: hand a batch to its destinations, side by side, outside any transaction.

A worker gives each destination a thread, and waits for them for a moment only: what takes longer goes on by itself,
settles its own outcomes and keeps its lease, while the worker turns to the next batch. So a slow destination holds up
nobody, and one that never comes back costs a thread, not the worker. How many threads it may take is up to its gate.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import time
from typing import TYPE_CHECKING

from outbox.delivery.batch import Batch
from outbox.delivery.completion import Completion
from outbox.delivery.plan import plan, unplannable
from outbox.delivery.settle import settle
from outbox.delivery.share import Share
from outbox.errors import describe
from outbox.throttle.delivery_mode import DeliveryMode

if TYPE_CHECKING:
    from outbox.core import Outbox

logger = logging.getLogger("outbox")

# An interrupt reaches a thread only between two instructions: waiting is done in pieces.
PIECE_SECONDS = 0.5
# How long a worker waits for a batch: most are done by then, and settled in one go.
MOMENT_SECONDS = 0.1


def dispatch(box: Outbox, batch: Batch, mode: DeliveryMode = DeliveryMode.ONE_BATCH) -> Completion:
    """Deliver the batch and settle it; in a drain, without waiting for what takes longer than a moment."""
    shares = _split(box, batch)
    settle(box, batch)  # what needed no destination
    if box.side_by_side and (mode is DeliveryMode.DRAIN or len(shares) > 1):
        return _run_in_threads(box, batch, shares, mode)
    for share in shares:
        try:
            share.run(mode)
        finally:
            settle(box, batch)
    return Completion(0)


def _split(box: Outbox, batch: Batch) -> list[Share]:
    """The batch by destination."""
    shares: dict[str, Share] = {}
    # A batch may come from two claims, and so be of two versions.
    versions = {event.destinations_version for event in batch.events}
    audiences = box.audiences.look_up(versions, {event.event_type for event in batch.events})
    now = batch.clock.now()
    for event in batch.events:
        try:
            delivery, destinations = plan(box, event, audiences[event.event_type], now)
        except Exception as error:  # what is wrong with one event must not stop the others
            delivery, destinations = unplannable(box, event, now, describe(error)), []
        if not destinations:
            batch.finish(delivery)
        for destination in destinations:
            share = shares.get(destination.name)
            if share is None:
                share = shares[destination.name] = Share(box, batch, destination)
            share.deliveries.append(delivery)
    return list(shares.values())


def _run_in_threads(box: Outbox, batch: Batch, shares: list[Share], mode: DeliveryMode) -> Completion:
    """Settle what is finished as each share ends; leave behind what goes on for too long."""
    news: queue.SimpleQueue[Share] = queue.SimpleQueue()
    completion = Completion(len(shares))
    batch.overdue = lambda: _give_up(shares, completion)
    for share in shares:
        share.start(news, completion.share_ended, mode)
    ends_at = (
        time.monotonic() + MOMENT_SECONDS
        if mode is DeliveryMode.DRAIN
        else batch.started_at + box.settings.max_run_seconds
    )
    try:
        while _worth_waiting_for(shares) and (left := ends_at - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                news.get(timeout=min(left, PIECE_SECONDS))
                settle(box, batch)
        if mode is DeliveryMode.ONE_BATCH:
            _give_up(shares, completion)
    except BaseException:
        _give_up(shares, completion)
        raise
    finally:
        for share in shares:
            share.leave_behind()
        settle(box, batch)
    for share in shares:
        if share.interrupted is not None and mode is DeliveryMode.ONE_BATCH:
            raise share.interrupted
    return completion


def _worth_waiting_for(shares: list[Share]) -> bool:
    """Whether some share has not ended. Those that wait for others at their gates don't count, beside any that don't.

    With one share alone there is nobody to hold up; and whoever went on would likely claim more for the same gate.
    """
    return any(not share.over and (len(shares) == 1 or not share.waits) for share in shares)


def _give_up(shares: list[Share], completion: Completion) -> None:
    """Interrupt what is still busy, and go on as if it had ended."""
    for share in shares:
        if not share.over:
            logger.error("%s has not come back in time and is interrupted", share.name)
            share.interrupt()
    completion.abandon()
