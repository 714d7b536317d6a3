"""Limit how many batches one process sends to a destination at the same time.

It applies in a worker, to a destination without a concurrency limit of its own: otherwise a slow destination would take
more and more threads of the process. A batch has one slot, however many calls it makes at the same time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from outbox.destinations.limits import Limits
from outbox.throttle import concurrency_limit
from outbox.throttle.decision import Decision, Request, decide
from outbox.throttle.state_store import LocalStore
from outbox.throttle.stuck_calls import CallTracker


class ProcessLimit:
    """Decides by the batches of this process that are under way, and by how much the destination does in a second."""

    def __init__(self, name: str, max_batches: int, calls: CallTracker, clock: Callable[[], float]) -> None:
        self._name = name
        self._limits = Limits(concurrency=max_batches, open_after=None)
        self._calls = calls
        self._store = LocalStore(clock)

    def decide(self, request: Request) -> Decision:
        """Return how many events of a batch may be sent now; the batch takes a slot if any may."""
        calls = min(request.at_once, request.events)
        speed = None if request.speed is None else request.speed * calls
        batch = Request(request.holder, request.events, 1, request.hold_seconds, speed)
        decision = self._store.update(
            self._name,
            lambda state, now: decide(self._calls.keep_held(state, now), now, batch, self._limits),
        )
        at_once = min(request.at_once, decision.events)
        return decision if at_once == decision.at_once else replace(decision, at_once=at_once)

    def release(self, holder: str) -> None:
        """Release the slot of a batch, if it has one."""
        self._store.update(self._name, lambda state, _: (concurrency_limit.release(state, holder), None))
