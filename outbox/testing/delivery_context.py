"""Make the delivery context of a test: the parts of the outbox, without threads and without state between calls.

No lease is renewed, no worker is notified, and destinations are called in the test's own thread. The state that a
worker keeps between batches is new for each call: after a rollback of the test it would be wrong.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection

from outbox.core import Outbox
from outbox.delivery.audience import Audiences
from outbox.delivery.context import DeliveryContext
from outbox.delivery.failure_hooks import FailureHooks
from outbox.delivery.lease import LeaseKeeper
from outbox.delivery.quarantine import Quarantine
from outbox.delivery.scan_position import ScanPosition
from outbox.destinations.outcome import Outcome
from outbox.destinations.protocol import Destination
from outbox.destinations.recorded_destinations import RecordedDestinations
from outbox.events.event import Event
from outbox.notify.notifier import Notifier
from outbox.settings import Settings
from outbox.testing.rolled_back import InsideTestTransaction
from outbox.throttle.decision import Decision
from outbox.throttle.delivery_mode import DeliveryMode
from outbox.throttle.destination_throttle import Admission, DestinationThrottle
from outbox.throttle.shared_state import LocalStore
from outbox.throttle.throttles import Throttles


def context_of_test(
    box: Outbox, only: Collection[str] | None, on_outcome: Callable[[Event, str, Outcome], None]
) -> DeliveryContext:
    """Return the context; `only` are the names of the destinations that get events, None means all."""
    settings = dataclasses.replace(box.settings, redis_url=None)  # circuit breakers and limits are this call's own
    context = dataclasses.replace(
        box.delivery,
        settings=settings,
        notifier=Notifier(None),
        audiences=Audiences(box.dialect, box.registry, RecordedDestinations(box.dialect)),
        throttles=ThrottlesOfTest(settings, only),
        scan_position=ScanPosition(),
        quarantine=Quarantine(search_every=0.0),
        leases=NotRenewed(box.dialect, settings),
        failure_hooks=FailureHooks(box.database, runs_in_background=False),
        uses_threads=False,
        on_outcome=on_outcome,
    )
    if not box.dialect.in_transaction:
        return context
    return dataclasses.replace(context, call_transaction=InsideTestTransaction(box.dialect))


class NotRenewed(LeaseKeeper):
    """Renews no lease: no other worker sees the rows of a transaction that is not committed."""

    def renew_while_in_flight(self, batch: object) -> None:
        """Start no thread."""


class ThrottlesOfTest(Throttles):
    """Throttles of one call, some of which admit nothing."""

    def __init__(self, settings: Settings, only: Collection[str] | None) -> None:
        super().__init__(settings)
        self._only = only

    def of(self, destination: Destination) -> DestinationThrottle:
        if self._only is None or destination.name in self._only:
            return super().of(destination)
        return _Closed(destination, LocalStore(), max_batches=1, hold_seconds=1.0)


class _Closed(DestinationThrottle):
    """Admits no event: each is put off, stays due, and loses no attempt."""

    def admit(self, events: int, *, mode: DeliveryMode, on_wait: Callable[[], None] = lambda: None) -> Admission:
        return Admission(self, "", mode, Decision(0))
