"""A share: the events of a batch that go to one destination.

It asks the destination's throttle how many events may be sent now, gives these to the destination, puts off the others
(they are sent later), and records an outcome for each event that the destination has taken.
"""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta

from playhouse.pool import PooledDatabase

from outbox import crash_points
from outbox.delivery import retry
from outbox.delivery.attempts import tried
from outbox.delivery.batch import Batch, Delivery
from outbox.delivery.context import DeliveryContext
from outbox.delivery.controlled import Controlled
from outbox.delivery.key_order import KeyOrder, key_of
from outbox.delivery.recovery import make_due_again
from outbox.delivery.settle import settle
from outbox.destinations import delivery_span
from outbox.destinations.backoff import Backoff
from outbox.destinations.handler import CALL_ERRORS, POOL_EXHAUSTED, POOL_EXHAUSTED_WAIT
from outbox.destinations.order_policy import is_ordered
from outbox.destinations.outcome import Delivered, Outcome, Retry, exception_of, was_not_called
from outbox.destinations.protocol import Destination, Lease
from outbox.errors import NewerEvent, Unavailable, describe
from outbox.events.event import Event
from outbox.storage.connection_errors import CONNECTION_ERRORS
from outbox.storage.models import DELIVERED
from outbox.storage.progress import ProgressEntry, delivered
from outbox.telemetry import tracing
from outbox.telemetry.labels import Labels
from outbox.throttle.delivery_mode import DeliveryMode
from outbox.throttle.destination_throttle import Admission

# While a destination's circuit breaker is open, an event is put off for at most this long: the breaker may close soon.
LONGEST_WAIT_FOR_BREAKER_SECONDS = 600.0
# A share that the worker no longer waits for settles its outcomes at most this often, not after each event.
SETTLE_SECONDS = 0.1
# How often a thread tries to get a connection if the pool has none left.
CONNECT_AGAIN_SECONDS = 0.05

# The outcome of an event that a destination has taken, and for which it returned none.
NO_OUTCOME = Retry("the destination returned no outcome")


class Share:
    """Delivers one destination's events of a batch."""

    def __init__(self, context: DeliveryContext, batch: Batch, destination: Destination) -> None:
        self._context = context
        self._batch = batch
        self._destination = destination
        self._controlled = Controlled(context, batch, destination)
        self.name = destination.name
        # How long an event waits at most after the destination was unavailable; None for the usual backoff.
        self._longest_wait: timedelta | None = getattr(destination, "longest_wait", None)
        self._max_attempts: int | None = getattr(destination, "max_attempts", None)
        backoff: Backoff | None = getattr(destination, "backoff", None)
        self._settings = context.settings if backoff is None else backoff.applied_to(context.settings)
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
        self._outcomes: list[type[Outcome]] = []
        self._send_seconds: list[float] = []
        self._lacked_connection = False
        # Set while events with ordering keys are sent to a destination that keeps their order.
        self._key_order: KeyOrder | None = None

    @property
    def batch(self) -> Batch:
        return self._batch

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
            self._put_off_paused(self.deliveries)
            return
        closings = throttle.closings
        admission = throttle.admit(len(self.deliveries), mode=mode, on_wait=self._wait)
        self.is_waiting = False
        self._outcome_count = 0
        self._last_outcome_at = started_at = time.monotonic()
        try:
            self._put_off(self.deliveries[admission.events :], admission)
            if admission.events:
                self._deliver(admission)
        finally:
            admission.finish(self._outcome_count, self._last_outcome_at - started_at)
            self._count()
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
        try:
            for event, outcome in self._destination.deliver(events, self._lease(admission)):
                crash_points.point(crash_points.AFTER_SEND)
                delivery, begun_at = self._taken(event)
                self._record(delivery, begun_at, self._checked(outcome), admission)
                del outcome  # it may hold an exception, whose frames refer to this one
                del self._begun[event.position]
            if not self._has_asked_for_events:
                missing_outcome = Unavailable("the destination took none of its events")
                self._take(events)
            has_returned = True
        except CALL_ERRORS as failure:
            missing_outcome = (
                failure if isinstance(failure, Unavailable) else Retry(describe(failure), exception=failure)
            )
            self._context.call_transaction.ended()
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
                self._put_off(self.deliveries[number : admission.events], admission)
                return
            if self._context.stopping.is_set() or not self._batch.begin(delivery, self.name):
                continue
            yield self._begin(delivery)

    def _events_in_order(self, admission: Admission, order: KeyOrder) -> Iterator[Event]:
        """Yield the events that may be sent in this round, as `_events` does."""
        self._has_asked_for_events = True
        while not self._context.stopping.is_set() and (delivery := order.next()) is not None:
            if admission.is_withdrawn or self._controlled.is_paused:
                self._put_off([delivery, *order.take_all()], admission)
            elif self._batch.begin(delivery, self.name):
                yield self._begin(delivery)
            else:
                order.not_begun(delivery)

    def _begin(self, delivery: Delivery) -> Event:
        """Return the event that the destination takes."""
        # Each destination has its own `attempt`, so destinations that run at the same time get copies of the event.
        is_shared = len(delivery.awaited) > 1 or self._max_attempts is not None
        event = copy.copy(delivery.event) if is_shared else delivery.event
        event.attempt = delivery.progress[self.name].attempts + 1
        if self._max_attempts is not None:
            event.max_attempts = self._max_attempts
        self._begun[event.position] = delivery, time.monotonic()
        self._context.call_transaction.begins()
        if self._tracer is not None:
            delivery_span.start_span(self._tracer, event, self._destination)
            self._traced[event.position] = event
        return event

    def _lease(self, admission: Admission) -> Lease:
        ends_at = self._batch.started_at + self._context.settings.max_run_seconds
        return Lease(ends_at, admission.at_once, self._batch.clock, self._wait_for_connection)

    def _checked(self, outcome: Outcome) -> Outcome:
        """Return the outcome, or a Retry if the call left its transaction open.

        Otherwise what this thread settles would become part of that transaction, and be lost with it.
        """
        if not self._context.call_transaction.ended():
            return outcome
        return Retry("a transaction was left open; it was rolled back")

    def _record(self, delivery: Delivery, begun_at: float, outcome: Outcome, admission: Admission | None) -> None:
        """Record an event's outcome. `admission` is None if the outcome does not come from the destination."""
        next_entry = self._next_entry(delivery, outcome)
        returned_at = time.monotonic()
        lacked_connection, self._lacked_connection = self._lacked_connection, False
        attempt = None  # without a connection, or code that is new enough, it was not called
        if not lacked_connection and not isinstance(outcome, NewerEvent):
            attempt = tried(self._context, self._batch, self.name, outcome, returned_at - begun_at)
        exception = exception_of(outcome) if self._context.registry.failure_hooks else None
        self._batch.record(delivery, self.name, next_entry, exception, attempt)
        if self._context.on_outcome is not None:
            self._context.on_outcome(delivery.event, self.name, outcome)
        if self._key_order is not None:
            # One that has failed where failures are skipped lets the others go on when that is written: a worker that
            # takes it over after a crash would try it again, after these.
            self._key_order.ended(delivery, goes_on=next_entry.state == DELIVERED)
        if was_not_called(outcome):
            admission = None  # the payload could not be read: that says nothing about the handler
        if admission is not None:  # the time until an interrupt says nothing about the destination's speed
            self._outcome_count += 1
            self._last_outcome_at = returned_at
        if not isinstance(outcome, NewerEvent):
            self._outcomes.append(type(outcome))
            self._send_seconds.append(returned_at - begun_at)
        if self._traced:
            delivery_span.end_span(self._traced.pop(delivery.event.position), outcome)
        if admission is not None and not lacked_connection:
            admission.record_outcome(outcome)
        if self.left_behind:
            self.settle_if_left_behind(at_most_every=SETTLE_SECONDS)

    def settle_while_running(self) -> None:
        """Settle the outcomes from time to time, and at the end, since no other thread waits for this share."""
        self.left_behind = True
        self._settled_at = time.monotonic()

    def settle_if_left_behind(self, *, at_most_every: float = 0.0) -> None:
        """Settle the batch's finished events, if the thread that dispatched it no longer does so."""
        if self.left_behind and time.monotonic() - self._settled_at >= at_most_every:
            self._settled_at = time.monotonic()
            settle(self._context, self._batch)

    def _count(self) -> None:
        """Add the outcomes, and how long each took, to the counters."""
        counts: dict[Labels, int] = {
            (("destination", self.name), ("outcome", kind.__name__.lower())): count
            for kind, count in Counter(self._outcomes).items()
        }
        self._context.counters.add_labelled("outcomes", counts)
        self._context.counters.observe("send", self._send_seconds, destination=self.name)
        self._outcomes.clear()
        self._send_seconds.clear()

    # Events that are put off

    def _put_off(self, deliveries: Sequence[Delivery], admission: Admission) -> None:
        """Put off events until the circuit breaker may close, or until the rate limit has room for them.

        While the breaker is open, the first event of an ordering key is put off, and the later ones wait behind it.
        """
        if self._controlled.is_paused:
            self._put_off_paused(deliveries)
            return
        now = self._batch.clock.now()
        if admission.decision.breaker_open or admission.is_withdrawn:
            for delivery in self._first_of_keys(deliveries):
                entry = delivery.progress[self.name]
                later = self._after(entry, self._not_tried(entry, admission), now, 0)
                self._batch.put_off(delivery, self.name, later)
            return
        reason = self._controlled.reason_to_wait
        for number, delivery in enumerate(deliveries):
            until = now + timedelta(seconds=admission.decision.delay_seconds(number))
            self._batch.put_off(delivery, self.name, delivery.progress[self.name].postponed(until, reason=reason))

    def _put_off_paused(self, deliveries: Sequence[Delivery]) -> None:
        """Put off events until the end of the pause."""
        for delivery in self._first_of_keys(deliveries):
            self._batch.put_off(delivery, self.name, self._controlled.while_paused(delivery.progress[self.name]))

    def _first_of_keys(self, deliveries: Sequence[Delivery]) -> Iterator[Delivery]:
        """Yield the events that have to be put off. Later events of an ordering key wait behind its first one."""
        keys: set[str] = set()
        keeps_order = self._batch.has_keys and is_ordered(self._destination)
        for delivery in deliveries:
            key = key_of(delivery) if keeps_order else None
            if key is not None and key in keys:
                self._batch.wait_behind(delivery, self.name)
                continue
            if key is not None:
                keys.add(key)
            yield delivery

    def _next_entry(self, delivery: Delivery, outcome: Outcome) -> ProgressEntry:
        """Return the destination's entry after an outcome of this event."""
        entry = delivery.progress[self.name]
        if isinstance(outcome, Delivered):
            return delivered(entry.attempts + 1)
        if isinstance(outcome, Unavailable) and outcome.not_before is None and self._longest_wait is not None:
            wait = min(retry.backoff(entry.waits + 1, self._settings), self._longest_wait)
            outcome = Unavailable(outcome.error, not_before=wait, http_status=outcome.http_status)
        limit = delivery.event.max_attempts if self._max_attempts is None else self._max_attempts
        return self._after(entry, outcome, self._batch.clock.now(), limit)

    def _after(self, entry: ProgressEntry, outcome: Outcome, now: datetime, max_attempts: int) -> ProgressEntry:
        """Return the destination's entry after an outcome. The time that it was paused does not count."""
        paused = self._controlled.paused_seconds()
        if isinstance(outcome, NewerEvent):
            self._context.warn_once(f"{self.name}: {outcome}.")
        return retry.after_reading(entry, outcome, now, max_attempts, self._settings, paused_seconds=paused)

    def _not_tried(self, entry: ProgressEntry, admission: Admission) -> Unavailable:
        backoff = retry.backoff(entry.waits + 1, self._settings)
        longest = timedelta(seconds=LONGEST_WAIT_FOR_BREAKER_SECONDS)
        usual = min(backoff, longest if self._longest_wait is None else self._longest_wait)
        at_least = timedelta(seconds=admission.decision.wait_seconds)
        return Unavailable(
            "not tried: its circuit breaker is open, since it could not be reached",
            not_before=max(usual, at_least),
        )

    def put_off_without_connection(self) -> None:
        """Put off all events, because the connection pool had no connection for this share's thread."""
        now, outcome = self._batch.clock.now(), Unavailable(POOL_EXHAUSTED, not_before=POOL_EXHAUSTED_WAIT)
        for delivery in self.deliveries:
            later = self._after(delivery.progress[self.name], outcome, now, 0)
            self._batch.put_off(delivery, self.name, later)

    def _wait_for_connection(self) -> bool:
        """Wait for a connection after a call could not get one; return whether this thread has one now.

        If this thread has a connection of the outbox's pool, the call used another pool, so waiting does not help.
        """
        database = self._context.dialect.database
        found = isinstance(database, PooledDatabase) and database.is_closed() and connect(self._context)
        self._lacked_connection = not found
        return found


def connect(context: DeliveryContext) -> bool:
    """Wait a few seconds for a connection for this thread; return whether it has one."""
    ends_at = time.monotonic() + context.waits.connection_seconds
    while True:
        try:
            context.dialect.database.connect(reuse_if_open=True)
        except CONNECTION_ERRORS:
            if time.monotonic() >= ends_at or context.stopping.is_set():
                return False
            time.sleep(CONNECT_AGAIN_SECONDS)
        else:
            return True
