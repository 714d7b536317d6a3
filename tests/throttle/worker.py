"""A worker process with the throttle of one destination, and a clock that the test moves."""

from collections.abc import Iterable
from typing import Any

from outbox.destinations.limits import Limits
from outbox.destinations.outcome import Outcome
from outbox.destinations.protocol import Lease
from outbox.errors import Unavailable
from outbox.events.event import Event
from outbox.throttle.delivery_mode import DeliveryMode
from outbox.throttle.destination_throttle import TIMES, Admission, DestinationThrottle, ThrottleTimes
from outbox.throttle.shared_state import Decide, LocalStore, ThrottleState
from outbox.throttle.throttles import Throttles

HOLD_SECONDS = 100.0
DRAIN, ONE_BATCH = DeliveryMode.DRAIN, DeliveryMode.ONE_BATCH
REFUSED = Unavailable("refused")


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Target:
    """A destination that delivers nothing: the throttle is tested alone."""

    events = ("*",)

    def __init__(self, limits: Limits | None = None, **options: Any) -> None:
        self.name = "target"
        self.limits = limits
        self.hold_seconds = HOLD_SECONDS
        vars(self).update(options)

    def deliver(self, events: Iterable[Event], lease: Lease) -> Iterable[tuple[Event, Outcome]]:
        return []


class CountingStore(LocalStore):
    updates = 0

    def update(self, name: str, decide: Decide[Any]) -> Any:
        self.updates += 1
        return super().update(name, decide)


class Worker:
    """A process with a throttle, and a clock that the test moves."""

    def __init__(
        self, limits: Limits | None = None, *, max_batches: int = 2, times: ThrottleTimes = TIMES, **options: Any
    ) -> None:
        self.clock = Clock()
        self.store = CountingStore(self.clock)
        self.throttle = DestinationThrottle(
            Target(limits, **options),
            self.store,
            self.clock,
            max_batches=max_batches,
            hold_seconds=HOLD_SECONDS,
            times=times,
        )

    def try_one(self, outcome: Outcome, events: int = 1) -> Admission:
        """Ask for admission, and report this outcome for each admitted event."""
        return go(self.throttle, outcome, events)

    def open(self) -> None:
        for _ in range(5):
            self.try_one(REFUSED)
        assert self.is_open()

    def is_open(self) -> bool:
        return self.state.is_open

    @property
    def state(self) -> ThrottleState:
        state: ThrottleState = self.store.update(self.throttle.name, lambda state, _: (state, state))
        return state

    def events(self, wanted: int = 100, *, mode: DeliveryMode = ONE_BATCH) -> int:
        """Return how many of these events are admitted now."""
        return self.throttle.admit(wanted, mode=mode).events


def go(throttle: DestinationThrottle, outcome: Outcome, events: int = 1) -> Admission:
    admission = throttle.admit(events, mode=ONE_BATCH)
    for _ in range(admission.events):
        admission.record_outcome(outcome)
    admission.finish(admission.events, 0.01)
    return admission


def state_of(throttles: Throttles, target: Target) -> ThrottleState:
    """Return what the workers share about a destination."""
    state: ThrottleState = throttles._shared_store().update(target.name, lambda state, _: (state, state))
    return state


def fail(throttle: DestinationThrottle, times: int = 5) -> None:
    for _ in range(times):
        throttle.record_outcome(REFUSED, probe=False)


def close(throttles: Throttles) -> None:
    if throttles._store is not None:
        throttles._store._shared._compare_and_set.registered_client.close()  # type: ignore[attr-defined]
