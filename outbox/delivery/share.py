"""A share: the events of a batch that go to one destination.

It asks the destination's throttle how many events may be sent now, gives these to the destination, puts off the others
(they are sent later: `put_off`), and records an outcome for each event that the destination has taken.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cached_property

from outbox import crash_points
from outbox.delivery.attempts import tried
from outbox.delivery.batch import Batch, Delivery
from outbox.delivery.context import DeliveryContext
from outbox.delivery.controlled import Controlled
from outbox.delivery.key_order import KeyOrder, key_of
from outbox.delivery.put_off import PutOff
from outbox.delivery.recovery import make_due_again
from outbox.delivery.settle import settle
from outbox.delivery.share_connection import ShareConnection
from outbox.destinations import delivery_span
from outbox.destinations.handler import CALL_ERRORS
from outbox.destinations.order_policy import is_ordered
from outbox.destinations.outcome import DELIVERED_OUTCOME, Delivered, Outcome, Retry, exception_of, was_not_called
from outbox.destinations.protocol import Destination, Lease
from outbox.errors import NewerEvent, Unavailable, describe
from outbox.events.event import Event
from outbox.storage.attempts import ALL
from outbox.storage.models import DELIVERED
from outbox.storage.progress import ProgressEntry, delivered
from outbox.telemetry import tracing
from outbox.telemetry.labels import Labels
from outbox.throttle.delivery_mode import DeliveryMode
from outbox.throttle.destination_throttle import Admission

# A share that the worker no longer waits for settles its outcomes at most this often, not after each event.
SETTLE_SECONDS = 0.1

# The outcome of an event that a destination has taken, and for which it returned none.
NO_OUTCOME = Retry("the destination returned no outcome")
# The outcome of an event whose call left its transaction open, whatever the destination returned.
TRANSACTION_LEFT_OPEN = Retry("a transaction was left open; it was rolled back")


class Share:
    """Delivers one destination's events of a batch."""

    def __init__(self, context: DeliveryContext, batch: Batch, destination: Destination) -> None:
        self._context = context
        self._batch = batch
        self._destination = destination
        self._controlled = Controlled(context, batch, destination)
        self.name = destination.name
        self._max_attempts: int | None = getattr(destination, "max_attempts", None)
        self.deliveries: list[Delivery] = []
        # Whether it is waiting for its destination's throttle, and what to call when it starts to wait.
        self.is_waiting = False
        self.on_wait: Callable[[], None] = lambda: None
        # Whether the thread that dispatched the batch no longer waits: then this share settles its outcomes itself.
        self.left_behind = False
        self._settled_at = 0.0
        self._begun: dict[int, tuple[Delivery, float]] = {}  # events without an outcome, and when they were taken
        self._tracer = tracing.tracer()
        self._traced: dict[int, Event] = {}
        self._has_asked_for_events = False
        self._outcome_count = 0
        self._last_outcome_at = 0.0
        # How long each event took, and the outcomes of those that were not delivered.
        self._send_seconds: list[float] = []
        self._not_delivered: list[type[Outcome]] = []
        self._lacked_connection = False
        self._connection = ShareConnection(context)
        # Set while events with ordering keys are sent to a destination that keeps their order.
        self._key_order: KeyOrder | None = None

    @property
    def batch(self) -> Batch:
        return self._batch

    @cached_property
    def _put_off(self) -> PutOff:
        """Make what puts off events: most shares need none."""
        return PutOff(self._context, self._batch, self._destination, self._controlled)

    @property
    def _has_followers(self) -> bool:
        """Return whether events have to follow each other: they have the same ordering key."""
        if not self._batch.has_keys or not is_ordered(self._destination):
            return False
        keys = [key for each in self.deliveries if (key := key_of(each)) is not None]
        return len(set(keys)) < len(keys)

    def run(self, mode: DeliveryMode) -> None:
        """Deliver the events that the destination's throttle admits now, and put off the others."""
        with self._context.around_calls():
            self._run(mode)

    def _run(self, mode: DeliveryMode) -> None:
        throttle = self._controlled.throttle()
        if self._controlled.is_paused:
            self._put_off.paused(self.deliveries)
            return
        closings = throttle.closings
        admission = throttle.admit(len(self.deliveries), mode=mode, on_wait=self._wait)
        self.is_waiting = False
        self._outcome_count = 0
        self._last_outcome_at = started_at = time.monotonic()
        try:
            if admission.events < len(self.deliveries):
                self._put_off.not_admitted(self.deliveries[admission.events :], admission)
            if admission.events:
                self._deliver(admission)
        finally:
            admission.finish(self._outcome_count, self._last_outcome_at - started_at)
            self._publish_counts()
        if throttle.closings != closings:
            self._context.recovery.begin(self.name)
            make_due_again(self._context)

    def _wait(self) -> None:
        self.is_waiting = True
        self.on_wait()

    def _deliver(self, admission: Admission) -> None:
        """Call the destination: once, or again if it took no event of a key after the one before it had ended."""
        if not self._has_followers:
            self._call(self._events(admission), admission)
            return
        self._key_order = order = KeyOrder(self.deliveries[: admission.events])
        while order.has_ready:
            outcomes = self._outcome_count
            succeeded = self._call(self._events_in_order(admission, order), admission)
            for delivery in order.take_held_back():
                self._batch.wait_behind(delivery, self.name)
            if not succeeded or self._outcome_count == outcomes:
                break  # what has not begun is given back

    def _call(self, events: Iterator[Event], admission: Admission) -> bool:
        """Call the destination, and record an outcome for every event that it has taken, whatever the call raises.

        Return whether it has raised no error.
        """
        self._has_asked_for_events = has_returned = False
        missing_outcome: Outcome = NO_OUTCOME
        recorded_by: Admission | None = admission
        nothing_else_to_do = self._records_successes_alone(admission)
        try:
            for event, outcome in self._destination.deliver(events, self._lease(admission)):
                if crash_points.point is not None:
                    crash_points.point(crash_points.AFTER_SEND)
                delivery, begun_at = self._taken(event)
                # What this thread settles would become part of a transaction that was left open, and be lost with it.
                error = None if outcome is DELIVERED_OUTCOME else exception_of(outcome)
                if self._connection.call_ended(error):
                    self._record(delivery, begun_at, TRANSACTION_LEFT_OPEN, admission)
                elif outcome is DELIVERED_OUTCOME and nothing_else_to_do and admission.was_reached:
                    self._record_delivered(delivery, begun_at)
                else:
                    self._record(delivery, begun_at, outcome, admission)
                del outcome, error  # they may hold an exception, whose frames refer to this one
                del self._begun[event.position]
            if not self._has_asked_for_events:
                missing_outcome = Unavailable("the destination took none of its events")
                self._take(events)
            has_returned = True
        except CALL_ERRORS as failure:
            missing_outcome = (
                failure if isinstance(failure, Unavailable) else Retry(describe(failure), exception=failure)
            )
            self._connection.call_ended(failure)
            if not self._has_asked_for_events:
                self._take(events)
        except BaseException as stop:
            # A time limit or a shutdown, raised anywhere: the events that it interrupted get an outcome first.
            missing_outcome = Retry(describe(stop), exception=stop)
            recorded_by = None  # that outcome does not come from the destination
            self._context.call_transaction.interrupted()
            raise
        finally:
            for delivery, begun_at in self._begun.values():
                self._record(delivery, begun_at, missing_outcome, recorded_by)
            self._begun.clear()
        return has_returned

    def _taken(self, event: Event) -> tuple[Delivery, float]:
        """Return the delivery of an event that the destination has taken, and when it was taken."""
        found = self._begun.get(event.position)
        if found is None:
            raise ValueError(
                f"the destination returned an outcome for {event!r}, which it had not taken, "
                "or had returned one for before"
            )
        return found

    def _take(self, events: Iterator[Event]) -> None:
        """Take the events for a destination that took none, so that they get an outcome.

        Without an outcome they would be due again at once, again and again, and no error would say why.
        """
        for _ in events:
            pass

    def _events(self, admission: Admission) -> Iterator[Event]:
        """Yield the events that may be sent. Each begins when it is yielded; none begins after the batch is closed."""
        self._has_asked_for_events = True
        for number, delivery in enumerate(self.deliveries[: admission.events]):
            if admission.is_withdrawn or self._controlled.is_paused:
                self._put_off.not_admitted(self.deliveries[number : admission.events], admission)
                return
            if self._connection.must_reconnect and (reason := self._connection.reconnect()) is not None:
                self._put_off.without_connection(self.deliveries[number : admission.events], reason)
                return
            now = time.monotonic()
            if self._context.stopping.is_set() or not self._batch.begin(delivery, self.name, now):
                continue
            yield self._begin(delivery, now)

    def _events_in_order(self, admission: Admission, order: KeyOrder) -> Iterator[Event]:
        """Yield the events that may be sent in this round, as `_events` does."""
        self._has_asked_for_events = True
        while not self._context.stopping.is_set() and (delivery := order.next()) is not None:
            now = time.monotonic()
            if admission.is_withdrawn or self._controlled.is_paused:
                self._put_off.not_admitted([delivery, *order.take_all()], admission)
            elif self._connection.must_reconnect and (reason := self._connection.reconnect()) is not None:
                self._put_off.without_connection([delivery, *order.take_all()], reason)
            elif self._batch.begin(delivery, self.name, now):
                yield self._begin(delivery, now)
            else:
                order.not_begun(delivery)

    def _begin(self, delivery: Delivery, now: float) -> Event:
        """Return the event that the destination takes now."""
        # Each destination has its own `attempt`, so destinations that run at the same time get copies of the event.
        is_shared = len(delivery.awaited) > 1 or self._max_attempts is not None
        event = delivery.event.copy() if is_shared else delivery.event
        event.attempt = delivery.progress[self.name].attempts + 1
        if self._max_attempts is not None:
            event.max_attempts = self._max_attempts
        self._begun[event.position] = delivery, now
        self._context.call_transaction.begins()
        if self._tracer is not None:
            delivery_span.start_span(self._tracer, event, self._destination)
            self._traced[event.position] = event
        return event

    def _lease(self, admission: Admission) -> Lease:
        ends_at = self._batch.started_at + self._context.settings.max_run_seconds
        return Lease(ends_at, admission.at_once, self._batch.clock, self._wait_for_connection)

    def _records_successes_alone(self, admission: Admission) -> bool:
        """Return whether a success needs no more than `_record_delivered` does: no span, no history, no probe."""
        return (
            self._tracer is None
            and self._key_order is None
            and self._context.on_outcome is None
            and self._context.settings.attempts != ALL
            and not admission.decision.probe
        )

    def _record_delivered(self, delivery: Delivery, begun_at: float) -> None:
        """Record that the destination has the event: the usual case, which does least, as `_record` would do it."""
        now = time.monotonic()
        entry = delivered(delivery.progress[self.name].attempts + 1)
        self._batch.record(delivery, self.name, entry, now)
        self._outcome_count += 1
        self._last_outcome_at = now
        self._send_seconds.append(now - begun_at)
        if self.left_behind:
            self.settle_if_left_behind(at_most_every=SETTLE_SECONDS)

    def _record(self, delivery: Delivery, begun_at: float, outcome: Outcome, admission: Admission | None) -> None:
        """Record an event's outcome. `admission` is None if the outcome does not come from the destination."""
        returned_at = time.monotonic()
        next_entry = self._entry_after(delivery, outcome)
        lacked_connection, self._lacked_connection = self._lacked_connection, False
        attempt = None  # without a connection, or code that is new enough, it was not called
        if not lacked_connection and not isinstance(outcome, NewerEvent):
            attempt = tried(self._context, self._batch, self.name, outcome, returned_at - begun_at)
        exception = exception_of(outcome) if self._context.registry.failure_hooks else None
        self._batch.record(delivery, self.name, next_entry, returned_at, exception=exception, tried=attempt)
        if self._context.on_outcome is not None:
            self._context.on_outcome(delivery.event, self.name, outcome)
        if self._key_order is not None:
            # An event that has failed where failures are skipped releases the later ones only after that is written.
            # Otherwise, after a crash, another worker would try it again, after the later ones.
            self._key_order.ended(delivery, goes_on=next_entry.state == DELIVERED)
        if was_not_called(outcome):
            admission = None  # the payload could not be read: that says nothing about the handler
        if admission is not None:  # the time until an interrupt says nothing about the destination's speed
            self._outcome_count += 1
            self._last_outcome_at = returned_at
        self._count_outcome(outcome, returned_at - begun_at)
        if self._traced:
            delivery_span.end_span(self._traced.pop(delivery.event.position), outcome)
        if admission is not None and not lacked_connection:
            admission.record_outcome(outcome)
        if self.left_behind:
            self.settle_if_left_behind(at_most_every=SETTLE_SECONDS)

    def _entry_after(self, delivery: Delivery, outcome: Outcome) -> ProgressEntry:
        """Return the destination's entry after an attempt that has ended with this outcome."""
        if isinstance(outcome, Delivered):
            return delivered(delivery.progress[self.name].attempts + 1)
        return self._put_off.entry_after(delivery, outcome)

    def _count_outcome(self, outcome: Outcome, seconds: float) -> None:
        if isinstance(outcome, NewerEvent):
            return  # the destination was not called
        self._send_seconds.append(seconds)
        if not isinstance(outcome, Delivered):
            self._not_delivered.append(type(outcome))

    def settle_while_running(self) -> None:
        """Settle the outcomes from time to time, and at the end, since no other thread waits for this share."""
        self.left_behind = True
        self._settled_at = time.monotonic()

    def settle_if_left_behind(self, *, at_most_every: float = 0.0) -> None:
        """Settle the batch's finished events, if the thread that dispatched it no longer does so."""
        if self.left_behind and time.monotonic() - self._settled_at >= at_most_every:
            self._settled_at = time.monotonic()
            settle(self._context, self._batch)

    def _publish_counts(self) -> None:
        """Add the outcomes, and how long each took, to the counters."""
        if not self._send_seconds:
            return
        outcomes = Counter(self._not_delivered) if self._not_delivered else {}
        counts: dict[Labels, int] = {self._labels(kind): number for kind, number in outcomes.items()}
        if delivered_count := len(self._send_seconds) - len(self._not_delivered):
            counts[self._labels(Delivered)] = delivered_count
        self._context.counters.add_labelled("outcomes", counts)
        self._context.counters.observe("send", self._send_seconds, destination=self.name)
        self._send_seconds.clear()
        self._not_delivered.clear()

    def _labels(self, outcome: type[Outcome]) -> Labels:
        return ("destination", self.name), ("outcome", outcome.__name__.lower())

    # Connections

    def put_off_without_connection(self, reason: Unavailable) -> None:
        """Put off all events, because this share's thread could get no connection."""
        self._put_off.without_connection(self.deliveries, reason)

    def _wait_for_connection(self) -> bool:
        """Wait for a connection after a call could not get one; return whether this thread has one now."""
        found = self._connection.wait_after_exhausted_pool()
        self._lacked_connection = not found
        return found
