"""Track the calls of this process to one destination, and find the calls that don't return.

A call that does not return keeps its slot, so that such calls can't take more threads and connections than the limit
allows. When they have taken all slots, the destination is stuck in this process: this process sends it nothing more,
logs that, and may end (OUTBOX_EXIT_ON_STUCK).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from outbox.throttle import concurrency_limit
from outbox.throttle.shared_state import ActiveCalls, ThrottleState

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StuckCalls:
    """Calls that should have returned by now: how many, for how long, and whether they have taken all slots."""

    calls: int
    seconds: float  # since the first of them should have returned
    all_slots: bool


class CallTracker:
    """The calls of this process to one destination that are under way."""

    def __init__(
        self,
        name: str,
        clock: Callable[[], float],
        *,
        run_seconds: float,
        hold_seconds: float,
        max_calls: int | None,
        max_batches: int,
    ) -> None:
        """`run_seconds`: calls that take longer are stuck. Slots: `max_calls`, or `max_batches` if that is None."""
        self._name = name
        self._clock = clock
        self._run_seconds = run_seconds
        self._hold_seconds = hold_seconds
        self._max_calls = max_calls
        self._max_batches = max_batches
        self._lock = threading.Lock()
        # By holder, the id of a batch: since when its calls are under way, and how many.
        self._under_way: dict[str, tuple[float, int]] = {}
        self._is_logged = False

    def begin(self, holder: str, calls: int) -> None:
        """Track the calls of a batch."""
        with self._lock:
            self._under_way[holder] = self._clock(), calls

    def end(self, holder: str) -> None:
        """Forget the calls of a batch, which have returned."""
        with self._lock:
            self._under_way.pop(holder, None)
            was_logged, self._is_logged = self._is_logged, False
        if was_logged:
            logger.warning("Calls of %s have returned: this process delivers to it again", self._name)

    def stuck(self) -> StuckCalls | None:
        """Return the calls that have not returned in time; None if there are none."""
        if not self._under_way:
            return None  # the usual case
        now = self._clock()
        with self._lock:
            late = [(since, calls) for since, calls in self._under_way.values() if now - since >= self._run_seconds]
        if not late:
            return None
        calls = sum(calls for _, calls in late)
        all_slots = len(late) >= self._max_batches if self._max_calls is None else calls >= self._max_calls
        return StuckCalls(calls, now - min(late)[0] - self._run_seconds, all_slots)

    def all_slots_stuck(self, on_first: Callable[[], None]) -> bool:
        """Return whether calls that don't return have taken all slots; the first time, log it and call `on_first`."""
        stuck = self.stuck()
        if stuck is None or not stuck.all_slots:
            return False
        with self._lock:
            was_logged, self._is_logged = self._is_logged, True
        if not was_logged:
            logger.critical(
                "%d calls of %s have not returned %.0f s after they were interrupted, and may never return: this "
                "process delivers nothing more to it until they do. Its events are put off, without costing an "
                "attempt, and other processes can deliver them. Restart this process, and give the calls a timeout.",
                stuck.calls,
                self._name,
                stuck.seconds,
            )
            on_first()
        return True

    def keep_held(self, state: ThrottleState, now: float) -> ThrottleState:
        """Return the state in which long calls of this process don't expire while they are under way.

        `now` is by the store's clock.
        """
        if not self._under_way:
            return state  # the usual case
        clock = self._clock()
        with self._lock:
            extended = {
                holder: ActiveCalls(calls, now - (clock - since), now + self._hold_seconds)
                for holder, (since, calls) in self._under_way.items()
                if clock - since >= self._hold_seconds / 2
            }
        return concurrency_limit.hold(state, extended) if extended else state
