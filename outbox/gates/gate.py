"""A gate stands before each destination: it is asked before events go, and told what became of them."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from uuid import uuid4

from outbox.destinations import Destination
from outbox.errors import Unavailable
from outbox.gates import state as states
from outbox.gates.state import Answer, Request, State
from outbox.gates.store import LocalStore, Store
from outbox.limits import Limits
from outbox.outcome import Outcome

logger = logging.getLogger("outbox")

# Without limits there is nothing to agree on but whether it is open: that is looked up this often.
VIEW_SECONDS = 1.0
# When all places are taken, one may be free in a moment.
PATIENCE_SECONDS, LOOK_SECONDS = 0.1, 0.02
# How fast the measured speed follows: each batch counts for a third.
WEIGHT = 1 / 3
NO_LIMITS = Limits()


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
    ) -> None:
        self.name = destination.name
        self.limits: Limits = getattr(destination, "limits", None) or NO_LIMITS
        self._at_once: int = getattr(destination, "at_once", 1)
        self._hold_seconds: float = getattr(destination, "hold_seconds", hold_seconds)
        self._store = store
        self._clock = clock
        # Without a limit of its own, a process works on no more than this many shares of it at the same time.
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

    def enter(self, events: int, *, hurried: bool, on_wait: Callable[[], None] = lambda: None) -> Permit:
        """Ask for so many events. `hurried` ones have a second, and leave room for others."""
        holder = str(uuid4())
        request = Request(holder, events, self._at_once, self._hold_seconds, self._per_second if hurried else None)
        ends_at = time.monotonic() + PATIENCE_SECONDS
        with self._in_line(holder):
            while True:
                moves, in_time = self._moves, time.monotonic() < ends_at
                if self._line[0] == holder or not in_time:
                    answer = self._ask(request, bounded=hurried)
                    # Places that have been taken for longer won't be free in a moment.
                    if not answer.full or answer.wait > states.LEAST_WAIT or not in_time:
                        return Permit(self, holder, answer)
                on_wait()
                self._wait_for_a_move(moves)

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

    def _ask(self, request: Request, *, bounded: bool) -> Answer:
        """Both this process's own limit, if it is bounded, and what all workers agree on."""
        if not bounded or self.limits.concurrency is not None:
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
        answer = self._own_store.update(self.name, lambda state, now: states.ask(state, now, alone, self._own))
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
        return states.ask(state, now, request, self.limits)

    @property
    def _is_limited(self) -> bool:
        return self.limits.concurrency is not None or self.limits.per_second is not None

    def leave(self, holder: str) -> None:
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
