"""Apply what operators have decided about a destination: whether it is paused, and how much it may get a second.

The controls are those that the latest claim of this process has found (`destinations/controls.py`).
"""

from __future__ import annotations

from outbox.delivery import retry
from outbox.delivery.batch import Batch
from outbox.delivery.context import DeliveryContext
from outbox.destinations.protocol import Destination
from outbox.storage.progress import THROTTLED, ProgressEntry
from outbox.throttle.destination_throttle import DestinationThrottle


class Controlled:
    """One destination, as operators control it, during one batch."""

    def __init__(self, context: DeliveryContext, batch: Batch, destination: Destination) -> None:
        self._context = context
        self._batch = batch
        self._destination = destination
        self._name = destination.name

    @property
    def is_paused(self) -> bool:
        controls = self._context.audiences.recorded.controls
        return bool(controls.pauses) and controls.pause_of(self._name, self._batch.clock.now()) is not None

    def throttle(self) -> DestinationThrottle:
        """Return the destination's throttle, with the rate that an operator has set."""
        controls = self._context.audiences.recorded.controls
        throttle = self._context.throttles.of(self._destination)
        rate = controls.rate_of(self._name, self._batch.clock.now()) if controls.throttles else None
        throttle.control(rate, controls.reached.get(self._name))
        return throttle

    @property
    def reason_to_wait(self) -> str | None:
        """Return why events wait that the throttle does not admit now; None if an operator did not cause it."""
        controls = self._context.audiences.recorded.controls
        is_throttled = controls.rate_of(self._name, self._batch.clock.now()) is not None
        return THROTTLED if is_throttled else None

    def while_paused(self, entry: ProgressEntry) -> ProgressEntry:
        """Return the entry of an event that waits for the end of the pause."""
        now = self._batch.clock.now()
        pause = self._context.audiences.recorded.controls.pause_of(self._name, now)
        until = now if pause is None else pause.until  # it has just ended: the event stays due
        return retry.while_paused(entry, until, now)

    def paused_seconds(self) -> float:
        """Return for how long the destination has been paused until now, in all."""
        return self._context.audiences.recorded.paused_for(self._name, self._batch.clock.now())
