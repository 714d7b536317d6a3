"""A share: one destination's share of a batch."""

from __future__ import annotations

import copy
import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from playhouse.pool import PooledDatabase

from outbox import crash_points
from outbox.delivery import retry
from outbox.delivery.batch import Batch, Delivery
from outbox.delivery.interrupt import interrupt
from outbox.delivery.settle import settle
from outbox.destinations import delivery_span
from outbox.destinations.handler import CALL_ERRORS, POOL_EXHAUSTED, POOL_EXHAUSTED_WAIT
from outbox.destinations.outcome import Delivered, Outcome, Retry
from outbox.destinations.protocol import Destination, Lease
from outbox.errors import Unavailable, describe
from outbox.events.event import Event
from outbox.storage.connection_errors import CONNECTION_ERRORS
from outbox.storage.progress import ProgressEntry, delivered
from outbox.telemetry import tracing
from outbox.telemetry.labels import Labels
from outbox.throttle.delivery_mode import DeliveryMode
from outbox.throttle.destination_throttle import Admission

if TYPE_CHECKING:
    from outbox.core import Outbox

logger = logging.getLogger("outbox")

# No event is put off for longer than this because a circuit breaker is open: the destination may be back before.
LEFT_ALONE_SECONDS = 600.0
# Whoever settles for itself does so this often, not event by event.
SETTLE_SECONDS = 0.1
# How long a thread waits for a connection of a pool that has none left, and how often it asks.
CONNECTION_SECONDS = 5.0
CONNECT_AGAIN_SECONDS = 0.05


class Share:
    """Asks the gate, hands over what may go, puts off the rest, and records an outcome for each."""

    def __init__(self, box: Outbox, batch: Batch, destination: Destination) -> None:
        self._box = box
        self._batch = batch
        self._destination = destination
        self.name = destination.name
        self.deliveries: list[Delivery] = []
        self.interrupted: BaseException | None = None
        self._begun: dict[int, tuple[Delivery, float]] = {}  # and when
        self._tracer = tracing.tracer()
        self._traced: dict[int, Event] = {}
        self._asked = False
        self._answered = 0
        self._answered_at = 0.0
        self._outcomes: list[type[Outcome]] = []
        self._send_seconds: list[float] = []
        self._left_behind = False
        self._settled_at = 0.0
        self._news: queue.SimpleQueue[Share] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self.waits = False  # for others, at the gate
        self._was_interrupted = False
        self._starved = False
        self.over = False

    def run(self, mode: DeliveryMode) -> None:
        """Deliver what the gate lets through."""
        admission = self._box.throttles.of(self._destination).admit(len(self.deliveries), mode=mode, on_wait=self._wait)
        self.waits = False
        self._answered = 0
        self._answered_at = started_at = time.monotonic()
        try:
            self._put_off(self.deliveries[admission.events :], admission)
            if admission.events:
                self._deliver(admission)
        finally:
            admission.finish(self._answered, self._answered_at - started_at)
            self._count()

    def _deliver(self, admission: Admission) -> None:
        events = self._events(admission)
        unanswered: Outcome = Retry("the destination returned no outcome")
        heard_by: Admission | None = admission
        try:
            for event, outcome in self._destination.deliver(events, self._lease(admission)):
                crash_points.point(crash_points.AFTER_SEND)
                delivery, begun_at = self._taken(event)
                self._record(delivery, begun_at, self._checked(outcome), admission)
                del self._begun[event.position]
            if not self._asked:
                unanswered = Unavailable("the destination took none of its events")
                self._take(events)
        except CALL_ERRORS as failure:
            unanswered = failure if isinstance(failure, Unavailable) else Retry(describe(failure))
            if not self._asked:
                self._take(events)
        except BaseException as stop:
            # A time limit or a shutdown, raised anywhere: what it hit has to be accounted for before it goes on.
            unanswered = Retry(describe(stop))
            heard_by = None  # it was not the destination that answered
            self._box.dialect.discard_connection()
            raise
        finally:
            for delivery, begun_at in self._begun.values():
                self._record(delivery, begun_at, unanswered, heard_by)

    def _taken(self, event: Event) -> tuple[Delivery, float]:
        """What an answer is about, and when it was taken."""
        found = self._begun.get(event.position)
        if found is None:
            raise ValueError(f"the destination answered for {event!r}, which it had not taken, or had answered before")
        return found

    def _take(self, events: Iterator[Event]) -> None:
        """For a destination that did not: else they would be due again at once, over and over, and nobody knew why."""
        for _ in events:
            pass

    # In a thread of its own

    def start(self, news: queue.SimpleQueue[Share], ended: Callable[[], None], mode: DeliveryMode) -> None:
        """Run in a thread of its own; put itself on the queue when there is news, and call `ended` last of all."""
        self._news = news
        name = f"outbox-to-{self.name}"
        self._thread = threading.Thread(target=self._run_in_thread, args=(ended, mode), name=name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # no room for one more: what has not begun goes back
            logger.warning("%s gets no thread: %s", self.name, error)
            self.over = True
            ended()

    def leave_behind(self) -> None:
        """Nobody waits any more: what it still finishes it has to settle itself, if the lease lasts that long."""
        self._left_behind = True

    def interrupt(self) -> None:
        """It goes on for too long."""
        if self._thread is not None and not self._was_interrupted:
            self._was_interrupted = True
            interrupt(self._thread)

    def _run_in_thread(self, ended: Callable[[], None], mode: DeliveryMode) -> None:
        try:
            if self._box.database.autoconnect or self._connect():
                self.run(mode)
            else:
                self._put_off_without_connection()
        except BaseException as stop:
            self.interrupted = stop
            if mode is DeliveryMode.DRAIN:
                logger.error("%s was interrupted: %s", self.name, describe(stop))  # noqa: TRY400  (no error of ours)
        finally:
            self.over = True
            self._news.put(self)
            if self._left_behind:
                settle(self._box, self._batch)
            ended()
            if not self._box.database.is_closed():
                self._box.database.close()

    def _connect(self) -> bool:
        """Wait a few seconds for a connection for this thread; return whether it has one."""
        ends_at = time.monotonic() + CONNECTION_SECONDS
        while True:
            try:
                self._box.database.connect(reuse_if_open=True)
            except CONNECTION_ERRORS:
                if time.monotonic() >= ends_at or self._box.stopping.is_set():
                    return False
                time.sleep(CONNECT_AGAIN_SECONDS)
            else:
                return True

    def _wait_for_connection(self) -> bool:
        """The same for a call that found none. If this thread has one, it is another pool that has none left."""
        database = self._box.database
        found = isinstance(database, PooledDatabase) and database.is_closed() and self._connect()
        self._starved = not found
        return found

    def _put_off_without_connection(self) -> None:
        now, outcome = self._batch.clock.now(), Unavailable(POOL_EXHAUSTED, not_before=POOL_EXHAUSTED_WAIT)
        for delivery in self.deliveries:
            later = retry.after(delivery.progress[self.name], outcome, now, 0, self._box.settings)
            self._batch.put_off(delivery, self.name, later)

    def _wait(self) -> None:
        """For a place at the gate: nobody has to wait along."""
        self.waits = True
        self._news.put(self)

    # One event after another

    def _events(self, admission: Admission) -> Iterator[Event]:
        """The events that may go, each begun when it is asked for, until time is up."""
        self._asked = True
        for number, delivery in enumerate(self.deliveries[: admission.events]):
            if admission.is_withdrawn:
                self._put_off(self.deliveries[number : admission.events], admission)
                return
            if self._box.stopping.is_set() or not self._batch.begin(delivery, self.name):
                continue
            # Destinations side by side must not share what is counted per destination.
            event = delivery.event if len(delivery.awaited) == 1 else copy.copy(delivery.event)
            event.attempt = delivery.progress[self.name].attempts + 1
            self._begun[event.position] = delivery, time.monotonic()
            if self._tracer is not None:
                delivery_span.start_span(self._tracer, event, self._destination)
                self._traced[event.position] = event
            yield event

    def _lease(self, admission: Admission) -> Lease:
        ends_at = self._batch.started_at + self._box.settings.max_run_seconds
        return Lease(ends_at, admission.at_once, self._batch.clock, self._wait_for_connection)

    def _checked(self, outcome: Outcome) -> Outcome:
        """A handler that leaves its transaction open would take our settling along when it is lost."""
        if self._box.database.is_closed() or not self._box.dialect.in_transaction:
            return outcome
        self._box.dialect.discard_connection()
        return Retry("a transaction was left open; it was rolled back")

    def _record(self, delivery: Delivery, begun_at: float, outcome: Outcome, admission: Admission | None) -> None:
        entry = delivery.progress[self.name]
        if isinstance(outcome, Delivered):
            reached = delivered(entry.attempts + 1)
        else:
            now = self._batch.clock.now()
            reached = retry.after(entry, outcome, now, delivery.event.max_attempts, self._box.settings)
        self._batch.answer(delivery, self.name, reached)
        answered_at = time.monotonic()
        if admission is not None:  # how long a call went on until it was interrupted says nothing about the destination
            self._answered += 1
            self._answered_at = answered_at
        self._outcomes.append(type(outcome))
        self._send_seconds.append(answered_at - begun_at)
        if self._traced:
            delivery_span.end_span(self._traced.pop(delivery.event.position), outcome)
        starved, self._starved = self._starved, False
        if admission is not None and not starved:  # for want of a connection the destination was not even tried
            admission.record_outcome(outcome)
        if self._left_behind and time.monotonic() - self._settled_at >= SETTLE_SECONDS:
            self._settled_at = time.monotonic()
            settle(self._box, self._batch)

    def _count(self) -> None:
        """For whoever watches: what this destination has answered, and how long it took for each."""
        counts: dict[Labels, int] = {
            (("destination", self.name), ("outcome", kind.__name__.lower())): count
            for kind, count in Counter(self._outcomes).items()
        }
        self._box.counters.add_labelled("outcomes", counts)
        self._box.counters.observe("send", self._send_seconds, destination=self.name)
        self._outcomes.clear()
        self._send_seconds.clear()

    # What may not go now

    def _put_off(self, deliveries: Sequence[Delivery], admission: Admission) -> None:
        """Until the destination is tried again, or until their turn."""
        now = self._batch.clock.now()
        left_alone = admission.decision.breaker_open or admission.is_withdrawn
        for number, delivery in enumerate(deliveries):
            entry = delivery.progress[self.name]
            if left_alone:
                later = retry.after(entry, self._unreached(entry, admission), now, 0, self._box.settings)
            else:
                later = entry.postponed(now + timedelta(seconds=admission.decision.delay_seconds(number)))
            self._batch.put_off(delivery, self.name, later)

    def _unreached(self, entry: ProgressEntry, admission: Admission) -> Unavailable:
        usual = min(retry.backoff(entry.waits + 1, self._box.settings), timedelta(seconds=LEFT_ALONE_SECONDS))
        at_least = timedelta(seconds=admission.decision.wait_seconds)
        return Unavailable(
            "not tried: its circuit breaker is open, since it could not be reached", not_before=max(usual, at_least)
        )
