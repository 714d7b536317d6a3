"""dispatch: hand a batch to its destinations, side by side, outside any transaction.

A worker gives each destination a thread: a slow one holds up nobody else's events, which are settled as soon as their
destinations are done, and one that never comes back costs a thread, not the worker.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import queue
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from outbox import retry
from outbox.database import CONNECTION_ERRORS
from outbox.delivery.batch import Batch, Delivery
from outbox.delivery.interrupt import interrupt
from outbox.delivery.plan import plan, unplannable
from outbox.delivery.settle import settle
from outbox.destinations import Destination, Lease
from outbox.destinations.handler import describe
from outbox.event import Event
from outbox.outcome import Outcome, Retry

if TYPE_CHECKING:
    from outbox.core import Outbox

logger = logging.getLogger("outbox")

# An interrupt reaches a thread only between two instructions: waiting is done in pieces.
PIECE_SECONDS = 0.5


def dispatch(box: Outbox, batch: Batch, *, in_threads: bool = False) -> None:
    """Deliver the batch and settle it, one destination in this thread, several in threads of their own."""
    groups = _group(box, batch)
    settle(box, batch)  # what needed no destination
    if box.side_by_side and (in_threads or len(groups) > 1):
        _run_in_threads(box, batch, groups)
        return
    for group in groups:
        try:
            group.run()
        finally:
            settle(box, batch)


def _group(box: Outbox, batch: Batch) -> list[Group]:
    """The batch by destination."""
    groups: dict[str, Group] = {}
    now = batch.clock.now()
    for event in batch.events:
        try:
            delivery, destinations = plan(box, event, now)
        except Exception as error:  # what is wrong with one event must not stop the others
            delivery, destinations = unplannable(box, event, now, describe(error)), []
        if not destinations:
            batch.finish(delivery)
        for destination in destinations:
            group = groups.setdefault(destination.name, Group(box, batch, destination))
            group.deliveries.append(delivery)
    return list(groups.values())


def _run_in_threads(box: Outbox, batch: Batch, groups: list[Group]) -> None:
    """Settle what is finished as each group ends; leave behind what goes on for too long."""
    done: queue.SimpleQueue[Group] = queue.SimpleQueue()
    running = {group: group.start(done) for group in groups}
    ends_at = batch.started_at + box.settings.max_run_seconds
    try:
        while running and time.monotonic() < ends_at:
            with contextlib.suppress(queue.Empty):
                group = done.get(timeout=PIECE_SECONDS)
                del running[group]
                settle(box, batch)
    finally:
        for group, thread in running.items():
            group.leave_behind()
            logger.error("%s has not come back in time and is interrupted", group.name)
            interrupt(thread)
        settle(box, batch)
    for group in groups:
        if group.interrupted is not None:
            raise group.interrupted


class Group:
    """One destination's share of a batch."""

    def __init__(self, box: Outbox, batch: Batch, destination: Destination) -> None:
        self._box = box
        self._batch = batch
        self._destination = destination
        self.name = destination.name
        self.deliveries: list[Delivery] = []
        self.interrupted: BaseException | None = None
        self._begun: dict[int, Delivery] = {}
        self._left_behind = False

    def run(self) -> None:
        """Deliver, and record an outcome for each event that was begun."""
        error = "the destination returned no outcome"
        try:
            for event, outcome in self._destination.deliver(self._events(), self._lease()):
                self._record(self._begun[event.seq], self._checked(outcome))
                del self._begun[event.seq]
        except Exception as failure:
            error = describe(failure)
        except BaseException as stop:
            # A time limit or a shutdown, raised anywhere: what it hit has to be accounted for before it goes on.
            error = describe(stop)
            self._box.dialect.discard_connection()
            raise
        finally:
            for delivery in self._begun.values():
                self._record(delivery, Retry(error))

    def start(self, done: queue.SimpleQueue[Group]) -> threading.Thread:
        """Run in a thread of its own, and say so on the queue when done."""
        thread = threading.Thread(target=self._run_in_thread, args=(done,), name=f"outbox-to-{self.name}", daemon=True)
        thread.start()
        return thread

    def leave_behind(self) -> None:
        """Nobody waits any more: what it still finishes it has to settle itself, if the lease lasts that long."""
        self._left_behind = True

    def _run_in_thread(self, done: queue.SimpleQueue[Group]) -> None:
        try:
            if not self._box.database.autoconnect:
                with contextlib.suppress(*CONNECTION_ERRORS):
                    self._box.database.connect()
            self.run()
        except BaseException as stop:
            self.interrupted = stop
        finally:
            done.put(self)
            if self._left_behind:
                settle(self._box, self._batch)
            if not self._box.database.is_closed():
                self._box.database.close()

    def _events(self) -> Iterator[Event]:
        """The events, each begun when it is asked for, until time is up."""
        for delivery in self.deliveries:
            if self._box.stopping.is_set() or not self._batch.begin(delivery, self.name):
                continue
            # Destinations side by side must not share what is counted per destination.
            event = delivery.event if len(delivery.awaited) == 1 else copy.copy(delivery.event)
            event.attempt = delivery.standings[self.name].attempts + 1
            self._begun[event.seq] = delivery
            yield event

    def _lease(self) -> Lease:
        ends_at = self._batch.started_at + self._box.settings.max_run_seconds
        return Lease(ends_at, getattr(self._destination, "at_once", 1), self._batch.clock)

    def _checked(self, outcome: Outcome) -> Outcome:
        """A handler that leaves its transaction open would take our settling along when it is lost."""
        if self._box.database.is_closed() or not self._box.dialect.in_transaction:
            return outcome
        self._box.dialect.discard_connection()
        return Retry("a transaction was left open; it was rolled back")

    def _record(self, delivery: Delivery, outcome: Outcome) -> None:
        now = self._batch.clock.now()
        standing = delivery.standings[self.name]
        reached = retry.after(standing, outcome, now, delivery.event.max_attempts, self._box.settings)
        self._batch.answer(delivery, self.name, reached)
