"""A gate stands before each destination: it is asked before events go, and told what became of them.

A call that never returns keeps its place until its thread ends, so that calls that hang can't take more threads and
connections than the destination has places. When they have all of them, this process gives it nothing: it is stuck.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from uuid import uuid4

from outbox.destinations.limits import Limits
from outbox.destinations.outcome import Outcome
from outbox.destinations.protocol import Destination
from outbox.errors import Unavailable
from outbox.throttle import state as states
from outbox.throttle.delivery_mode import DeliveryMode
from outbox.throttle.state import Answer, Place, Request, State
from outbox.throttle.store import LocalStore, Store

logger = logging.getLogger("outbox")

# Without limits there is nothing to agree on but whether it is open: that is looked up this often.
VIEW_SECONDS = 1.0
# When all places are taken, one may be free in a moment.
PATIENCE_SECONDS, LOOK_SECONDS = 0.1, 0.02
# How fast the measured speed follows: each batch counts for a third.
WEIGHT = 1 / 3
NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Stuck:
    """Calls that should have returned by now: how many, the seconds since they should have, and whether they have all
    places, so that this process gives the destination nothing.
    """

    calls: int
    seconds: float
    all_places: bool


class Gate:
    """One destination's breaker, places and turns, as this process sees them."""

    def __init__(
        self,
        destination: Destination,
        store: Store,
        clock: Callable[[], float] = time.monotonic,
        *,
        groups: int,
        hold_seconds: float,
        run_seconds: float | None = None,
        on_stuck: Callable[[], None] = lambda: None,
    ) -> None:
        """`run_seconds`: calls that take longer don't return in time; `on_stuck` is called when no place is left."""
        self.name = destination.name
        self.limits: Limits = getattr(destination, "limits", None) or NO_LIMITS
        self._at_once: int = getattr(destination, "at_once", 1)
        self._hold_seconds: float = getattr(destination, "hold_seconds", hold_seconds)
        self._run_seconds = hold_seconds if run_seconds is None else run_seconds
        self._on_stuck = on_stuck
        # The calls of this process that are under way: since when, and how many.
        self._held: dict[str, tuple[float, int]] = {}
        self._told_stuck = False
        self._store = store
        self._clock = clock
        # Without a limit of its own, a process works on no more than this many shares of it at the same time.
        self._groups = groups
        self._own = Limits(concurrency=groups, open_after=None)
        self._own_store = LocalStore(clock)
        self._lock = threading.Lock()
        # Those of this process who wait for a place, the first to come first.
        self._line: deque[str] = deque()
        self._moved = threading.Condition()
        self._moves = 0
        self._failures = 0  # in a row, in this process
        self._per_second: float | None = None  # what one call at a time achieves
        self._calm_until = 0.0
        self._is_open = False
        self.trips = 0

    def enter(self, events: int, *, mode: DeliveryMode, on_wait: Callable[[], None] = lambda: None) -> Permit:
        """Ask for so many events. In a drain they get a second's work at most, and leave room for others."""
        holder = str(uuid4())
        if self._is_stuck(mode):
            return Permit(self, holder, Answer(0, full=True, wait=states.MOST_WAIT))
        per_second = self._per_second if mode is DeliveryMode.DRAIN else None
        request = Request(holder, events, self._at_once, self._hold_seconds, per_second)
        ends_at = time.monotonic() + PATIENCE_SECONDS
        with self._in_line(holder):
            while True:
                moves, in_time = self._moves, time.monotonic() < ends_at
                if self._line[0] == holder or not in_time:
                    answer = self._ask(request, mode)
                    # Places that have been taken for longer won't be free in a moment.
                    if not answer.full or answer.wait > states.LEAST_WAIT or not in_time:
                        return self._permit(holder, answer)
                on_wait()
                self._wait_for_a_move(moves)

    def _permit(self, holder: str, answer: Answer) -> Permit:
        if answer.events:
            with self._lock:
                self._held[holder] = self._clock(), answer.at_once
        return Permit(self, holder, answer)

    def stuck(self) -> Stuck | None:
        """Return what has not returned in time, if anything."""
        if not self._held:
            return None  # the usual
        now = self._clock()
        with self._lock:
            late = [(since, calls) for since, calls in self._held.values() if now - since >= self._run_seconds]
        if not late:
            return None
        calls = sum(calls for _, calls in late)
        limit = self.limits.concurrency
        all_places = len(late) >= self._groups if limit is None else calls >= limit
        return Stuck(calls, now - min(late)[0] - self._run_seconds, all_places)

    def _is_stuck(self, mode: DeliveryMode) -> bool:
        """Return whether calls that don't return have all places; the log says so once."""
        found = self.stuck()
        if found is None or not found.all_places:
            return False
        with self._lock:
            told, self._told_stuck = self._told_stuck, True
        if not told:
            logger.critical(
                "%d calls of %s have not returned %.0f s after they were interrupted, and never may: this process "
                "delivers nothing more to it until they return. Its events are put off, at no cost, for other "
                "processes. Restart this process, and give the calls a timeout.",
                found.calls,
                self.name,
                found.seconds,
            )
            if mode is DeliveryMode.DRAIN:
                self._on_stuck()
        return True

    def _still_held(self, state: State, now: float) -> State:
        """Return the state with the places of calls that take longer than a place is meant to be held for."""
        if not self._held:
            return state  # the usual
        clock = self._clock()
        with self._lock:
            old = {
                holder: Place(calls, now - (clock - since), now + self._hold_seconds)
                for holder, (since, calls) in self._held.items()
                if clock - since >= self._hold_seconds / 2
            }
        return states.hold(state, old) if old else state

    def _wait_for_a_move(self, known: int) -> None:
        with self._moved:
            self._moved.wait_for(lambda: self._moves != known, LOOK_SECONDS)

    @contextmanager
    def _in_line(self, holder: str) -> Iterator[None]:
        """Else whoever has just left would be back before those who wait have looked."""
        with self._moved:
            self._line.append(holder)
        try:
            yield
        finally:
            with self._moved:
                self._line.remove(holder)
            self._move()

    def _move(self) -> None:
        """Somebody has left, or has got in: whoever waits looks again."""
        with self._moved:
            self._moves += 1
            self._moved.notify_all()

    def _ask(self, request: Request, mode: DeliveryMode) -> Answer:
        """Both this process's own limit, in a drain, and what all workers agree on."""
        if mode is not DeliveryMode.DRAIN or self.limits.concurrency is not None:
            return self._ask_all(request)
        own = self._ask_own(request)
        if own.full and not self._is_open:
            return own
        # A probe needs no place: all of them may be taken by calls that take long.
        rest = own.full or own.events == request.events
        answer = self._ask_all(request if rest else replace(request, events=own.events))
        if answer.probe:
            return answer
        if not answer.events:
            self._leave_own(request.holder)
            return answer
        return own if own.events <= answer.events else answer

    def _ask_own(self, request: Request) -> Answer:
        """A share is one place, however many calls at once it makes."""
        calls = min(self._at_once, request.events)
        speed = None if request.per_second is None else request.per_second * calls
        alone = Request(request.holder, request.events, 1, request.hold_seconds, speed)
        answer = self._own_store.update(
            self.name, lambda state, now: states.ask(self._still_held(state, now), now, alone, self._own)
        )
        at_once = min(self._at_once, answer.events)
        return answer if at_once == answer.at_once else replace(answer, at_once=at_once)

    def _ask_all(self, request: Request) -> Answer:
        if self._is_limited or self._clock() >= self._calm_until:
            return self._store.update(self.name, lambda state, now: self._decide(state, now, request))
        return Answer(request.events, min(self._at_once, request.events))

    def _decide(self, state: State, now: float, request: Request) -> tuple[State, Answer]:
        calm = state.is_calm(now)
        self._is_open = state.open
        self._calm_until = self._clock() + VIEW_SECONDS if calm else 0.0
        if calm and not self._is_limited:
            return state, Answer(request.events, min(self._at_once, request.events))
        if self.limits.concurrency is not None:
            state = self._still_held(state, now)
        return states.ask(state, now, request, self.limits)

    @property
    def _is_limited(self) -> bool:
        return self.limits.concurrency is not None or self.limits.per_second is not None

    def leave(self, holder: str) -> None:
        with self._lock:
            self._held.pop(holder, None)
            returned, self._told_stuck = self._told_stuck, False
        if returned:
            logger.warning("calls of %s have returned: this process delivers to it again", self.name)
        if self.limits.concurrency is not None:
            self._store.release(self.name, lambda state, _: (states.leave(state, holder), None))
        else:
            self._leave_own(holder)
        self._move()

    def _leave_own(self, holder: str) -> None:
        self._own_store.update(self.name, lambda state, _: (states.leave(state, holder), None))

    @property
    def is_well(self) -> bool:
        """Whether it was reached the last time, as far as this process knows."""
        return self._failures == 0

    def note(self, outcome: Outcome, *, probe: bool, withdrawn: bool = False) -> None:
        """Count what could not be reached, in a row; any other answer came from the destination itself.

        What comes in after it was opened was sent before that, and tells nothing new.
        """
        if isinstance(outcome, Unavailable):
            if withdrawn:
                return
            with self._lock:
                self._failures += 1
                enough = self.limits.open_after is not None and self._failures >= self.limits.open_after
            if probe or enough:
                self._trip(outcome.error, probe=probe)
            return
        with self._lock:
            self._failures = 0
        if probe:
            self._store.update(self.name, lambda state, now: (states.recover(state, now), None))
            self._calm_until, self._is_open = 0.0, False
            logger.warning("%s is reached again", self.name)

    def unasked(self) -> None:
        """The probe was not sent."""
        self._store.update(self.name, lambda state, now: (states.unasked(state, now), None))

    def took(self, events: int, seconds: float, at_once: int) -> None:
        """Follow how fast it is."""
        speed = events / max(seconds, 1e-6) / max(at_once, 1)
        with self._lock:
            before = self._per_second
            self._per_second = speed if before is None else before + (speed - before) * WEIGHT

    def _trip(self, error: str, *, probe: bool) -> None:
        def decide(state: State, now: float) -> tuple[State, tuple[bool, float]]:
            after = states.trip(state, now, error, probe=probe)
            return after, (after != state, after.open_until - now)

        opened, seconds = self._store.update(self.name, decide)
        with self._lock:
            self._failures = 0
            self.trips += 1
            self._calm_until, self._is_open = 0.0, True
        if opened:
            logger.warning("%s is left alone for %.0f seconds: %s", self.name, seconds, error)


class Permit:
    """What a gate has answered; to be left when the events are through."""

    def __init__(self, gate: Gate, holder: str, answer: Answer) -> None:
        self._gate = gate
        self._holder = holder
        self._trips = gate.trips
        self.answer = answer
        self.events = answer.events
        self.at_once = answer.at_once

    @property
    def withdrawn(self) -> bool:
        """It was found out meanwhile that the destination can't be reached."""
        return self._gate.trips != self._trips

    def note(self, outcome: Outcome) -> None:
        if self._gate.is_well and not self.answer.probe and not isinstance(outcome, Unavailable):
            return  # the usual: nothing that is not known
        self._gate.note(outcome, probe=self.answer.probe, withdrawn=self.withdrawn)

    def leave(self, events: int, seconds: float) -> None:
        """Done: so many events took so long."""
        if self.events:
            self._gate.leave(self._holder)
        if events:
            self._gate.took(events, seconds, self.at_once)
        elif self.answer.probe:
            self._gate.unasked()
