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
from outbox.delivery.completion import Landing
from outbox.delivery.group import Group
from outbox.delivery.plan import plan, unplannable
from outbox.delivery.settle import settle
from outbox.errors import describe

if TYPE_CHECKING:
    from outbox.core import Outbox

logger = logging.getLogger("outbox")

# An interrupt reaches a thread only between two instructions: waiting is done in pieces.
PIECE_SECONDS = 0.5
# How long a worker waits for a batch: most are done by then, and settled in one go.
MOMENT_SECONDS = 0.1


def dispatch(box: Outbox, batch: Batch, *, hurried: bool = False) -> Landing:
    """Deliver the batch and settle it; a `hurried` worker turns away from what takes longer than a moment."""
    groups = _group(box, batch)
    settle(box, batch)  # what needed no destination
    if box.side_by_side and (hurried or len(groups) > 1):
        return _run_in_threads(box, batch, groups, hurried=hurried)
    for group in groups:
        try:
            group.run()
        finally:
            settle(box, batch)
    return Landing(0)


def _group(box: Outbox, batch: Batch) -> list[Group]:
    """The batch by destination."""
    groups: dict[str, Group] = {}
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
            group = groups.get(destination.name)
            if group is None:
                group = groups[destination.name] = Group(box, batch, destination)
            group.deliveries.append(delivery)
    return list(groups.values())


def _run_in_threads(box: Outbox, batch: Batch, groups: list[Group], *, hurried: bool) -> Landing:
    """Settle what is finished as each group ends; leave behind what goes on for too long."""
    news: queue.SimpleQueue[Group] = queue.SimpleQueue()
    landing = Landing(len(groups))
    batch.overdue = lambda: _give_up(groups, landing)
    for group in groups:
        group.start(news, landing.ended, hurried=hurried)
    ends_at = time.monotonic() + MOMENT_SECONDS if hurried else batch.started_at + box.settings.max_run_seconds
    try:
        while _worth_waiting_for(groups) and (left := ends_at - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                news.get(timeout=min(left, PIECE_SECONDS))
                settle(box, batch)
        if not hurried:
            _give_up(groups, landing)
    except BaseException:
        _give_up(groups, landing)
        raise
    finally:
        for group in groups:
            group.leave_behind()
        settle(box, batch)
    for group in groups:
        if group.interrupted is not None and not hurried:
            raise group.interrupted
    return landing


def _worth_waiting_for(groups: list[Group]) -> bool:
    """Whether some group has not ended. Those that wait for others at their gates don't count, beside any that don't.

    With one group alone there is nobody to hold up; and whoever went on would likely claim more for the same gate.
    """
    return any(not group.over and (len(groups) == 1 or not group.waits) for group in groups)


def _give_up(groups: list[Group], landing: Landing) -> None:
    """Interrupt what is still busy, and go on as if it had ended."""
    for group in groups:
        if not group.over:
            logger.error("%s has not come back in time and is interrupted", group.name)
            group.interrupt()
    landing.abandon()
