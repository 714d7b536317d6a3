"""Decide when one destination gets an event that it does not have: after an attempt, or without one.

A share uses this for each outcome other than Delivered, and for the events that it can't send now: an operator has
paused the destination, its circuit breaker is open, its rate limit is reached, or there is no database connection.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta

from outbox.delivery import retry
from outbox.delivery.batch import Batch, Delivery
from outbox.delivery.context import DeliveryContext
from outbox.delivery.controlled import Controlled
from outbox.delivery.key_order import key_of
from outbox.destinations.backoff import Backoff
from outbox.destinations.order_policy import is_ordered
from outbox.destinations.outcome import Outcome
from outbox.destinations.protocol import Destination
from outbox.errors import NewerEvent, Unavailable
from outbox.storage.progress import ProgressEntry
from outbox.throttle.destination_throttle import Admission

# While a destination's circuit breaker is open, an event is put off for at most this long: the breaker may close soon.
LONGEST_WAIT_FOR_BREAKER_SECONDS = 600.0


class PutOff:
    """Puts off events of a batch at one destination, by its own retry policy or that of the settings."""

    def __init__(
        self, context: DeliveryContext, batch: Batch, destination: Destination, controlled: Controlled
    ) -> None:
        self._context = context
        self._batch = batch
        self._name = destination.name
        self._controlled = controlled
        # How long an event waits at most after the destination was unavailable; None for the usual backoff.
        self._longest_wait: timedelta | None = getattr(destination, "longest_wait", None)
        self._max_attempts: int | None = getattr(destination, "max_attempts", None)
        backoff: Backoff | None = getattr(destination, "backoff", None)
        self._settings = context.settings if backoff is None else backoff.applied_to(context.settings)
        self._keeps_order = batch.has_keys and is_ordered(destination)

    def entry_after(self, delivery: Delivery, outcome: Outcome) -> ProgressEntry:
        """Return the destination's entry after an attempt that has ended with this outcome."""
        entry = delivery.progress[self._name]
        if isinstance(outcome, Unavailable) and outcome.not_before is None and self._longest_wait is not None:
            wait = min(retry.backoff(entry.waits + 1, self._settings), self._longest_wait)
            outcome = Unavailable(outcome.error, not_before=wait, http_status=outcome.http_status)
        limit = delivery.event.max_attempts if self._max_attempts is None else self._max_attempts
        return self._after(entry, outcome, limit)

    def not_admitted(self, deliveries: Sequence[Delivery], admission: Admission) -> None:
        """Put off events until the pause ends, the circuit breaker may close, or the rate limit has room for them."""
        if self._controlled.is_paused:
            self.paused(deliveries)
        elif admission.decision.breaker_open or admission.is_withdrawn:
            for delivery in self._first_of_keys(deliveries):
                entry = delivery.progress[self._name]
                later = self._after(entry, self._breaker_open(entry, admission), max_attempts=0)
                self._batch.put_off(delivery, self._name, later)
        else:
            now, reason = self._batch.clock.now(), self._controlled.reason_to_wait
            for number, delivery in enumerate(deliveries):
                until = now + timedelta(seconds=admission.decision.delay_seconds(number))
                later = delivery.progress[self._name].postponed(until, reason=reason)
                self._batch.put_off(delivery, self._name, later)

    def paused(self, deliveries: Sequence[Delivery]) -> None:
        """Put off events until the end of the pause."""
        for delivery in self._first_of_keys(deliveries):
            later = self._controlled.while_paused(delivery.progress[self._name])
            self._batch.put_off(delivery, self._name, later)

    def without_connection(self, deliveries: Sequence[Delivery], reason: Unavailable) -> None:
        """Put off events because the share's thread could get no connection to the database."""
        for delivery in self._first_of_keys(deliveries):
            later = self._after(delivery.progress[self._name], reason, max_attempts=0)
            self._batch.put_off(delivery, self._name, later)

    def _after(self, entry: ProgressEntry, outcome: Outcome, max_attempts: int) -> ProgressEntry:
        """Return the destination's entry after an outcome. The time that it was paused does not count."""
        if isinstance(outcome, NewerEvent):
            self._context.warn_once(f"{self._name}: {outcome}.")
        paused, now = self._controlled.paused_seconds(), self._batch.clock.now()
        return retry.after_reading(entry, outcome, now, max_attempts, self._settings, paused_seconds=paused)

    def _breaker_open(self, entry: ProgressEntry, admission: Admission) -> Unavailable:
        backoff = retry.backoff(entry.waits + 1, self._settings)
        longest = timedelta(seconds=LONGEST_WAIT_FOR_BREAKER_SECONDS)
        usual = min(backoff, longest if self._longest_wait is None else self._longest_wait)
        at_least = timedelta(seconds=admission.decision.wait_seconds)
        return Unavailable(
            "not tried: its circuit breaker is open, since it could not be reached",
            not_before=max(usual, at_least),
        )

    def _first_of_keys(self, deliveries: Sequence[Delivery]) -> Iterator[Delivery]:
        """Yield the events that have to be put off. Later events of an ordering key wait behind its first one."""
        keys: set[str] = set()
        for delivery in deliveries:
            key = key_of(delivery) if self._keeps_order else None
            if key is not None and key in keys:
                self._batch.wait_behind(delivery, self._name)
                continue
            if key is not None:
                keys.add(key)
            yield delivery
