"""dispatch: hand a batch to its destinations, side by side, outside any transaction.

Each destination works through its own events in its own thread, and what is finished is settled when a destination is
done: a slow one holds up nobody else's.
"""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from outbox import retry
from outbox.delivery.batch import Batch, Delivery
from outbox.delivery.plan import plan
from outbox.delivery.settle import settle
from outbox.destinations import Destination
from outbox.destinations.handler import describe
from outbox.event import Event
from outbox.outcome import Outcome, Retry

if TYPE_CHECKING:
    from outbox.core import Outbox

logger = logging.getLogger("outbox")

# Interrupts reach a thread only between two instructions: waiting is done in pieces.
JOIN_SECONDS = 0.5


def dispatch(box: Outbox, batch: Batch) -> None:
    """Deliver the batch and settle it; what has not begun when time is up goes back."""
    groups = _group(box, batch)
    settle(box, batch)  # what needed no destination
    if len(groups) > 1 and box.side_by_side:
        _run_side_by_side(groups, box.settings.max_run_seconds)
    else:
        for group in groups:
            group.run()


def _group(box: Outbox, batch: Batch) -> list[Group]:
    """The batch by destination."""
    groups: dict[str, Group] = {}
    now = batch.clock.now()
    for event in batch.events:
        delivery, destinations = plan(box, event, now)
        if not destinations:
            batch.finish(delivery)
        for destination in destinations:
            group = groups.setdefault(destination.name, Group(box, batch, destination))
            group.deliveries.append(delivery)
    return list(groups.values())


def _run_side_by_side(groups: list[Group], max_run_seconds: float) -> None:
    first, *others = groups
    threads = {
        group.name: threading.Thread(target=group.run_in_thread, name=f"outbox-{group.name}", daemon=True)
        for group in others
    }
    for thread in threads.values():
        thread.start()
    ends_at = time.monotonic() + max_run_seconds
    try:
        first.run()
    finally:
        for name, thread in threads.items():
            _join(name, thread, ends_at)
    for group in others:
        if group.interrupted is not None:
            raise group.interrupted


def _join(name: str, thread: threading.Thread, ends_at: float) -> None:
    """Wait for a destination, but not for ever: its lease is not renewed for ever either."""
    while thread.is_alive():
        if time.monotonic() >= ends_at:
            logger.error("%s has not come back within OUTBOX_MAX_RUN_SECONDS; its events will be claimed again", name)
            return
        thread.join(JOIN_SECONDS)


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

    def run(self) -> None:
        """Deliver, record an outcome for each event that was begun, settle."""
        error = "the destination returned no outcome"
        try:
            for event, outcome in self._destination.deliver(self._events()):
                self._record(self._begun[event.seq], self._checked(outcome))
                del self._begun[event.seq]
        except Exception as failure:
            error = describe(failure)
        except BaseException as interrupt:
            # A time limit or a shutdown, raised anywhere: what it hit has to be accounted for before it goes on.
            error = describe(interrupt)
            self._box.dialect.discard_connection()
            raise
        finally:
            for delivery in self._begun.values():
                self._record(delivery, Retry(error))
            settle(self._box, self._batch)

    def run_in_thread(self) -> None:
        try:
            self.run()
        except BaseException as interrupt:
            self.interrupted = interrupt
        finally:
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
