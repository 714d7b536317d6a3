"""Whether a destination may be given events now: pure decisions, from values to values.

A `State` holds what all workers have to agree on: whether the destination is being left alone, who has how many calls
under way, and when the next event's turn is. Times are seconds by the clock of whoever keeps the state.

    closed ──── could not be reached, n times in a row ────▶ open: left alone, for longer each time
      ▲                                                        │ time is up: one event is let through
      └──── it was reached; ramp up ◀──── probe ◀──────────────┘
                                            └──── not reached: open again
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from typing import Any, Self

from outbox.destinations.limits import Limits

# Left alone for this long at first, twice as long each time, up to the cap: a probe costs little.
OPEN_SECONDS = 5.0
OPEN_CAP_SECONDS = 60.0

# After an outage: five events a second at first, twice as many every five seconds, as many as come after a minute.
RAMP_PER_SECOND = 5.0
RAMP_DOUBLES_EVERY = 5.0
RAMP_SECONDS = 60.0

# A tenth of a second's worth may go at once: spacing every single event would cost a claim for each. And whoever comes
# a little late for its turn does not lose it.
BURST_SECONDS = 0.1
# Sums of times since 1970 are no more exact than this.
EXACT_SECONDS = 1e-6
# Nobody's turn is put further away than this: things may get better meanwhile.
HORIZON_SECONDS = 600.0
# Two readings of one clock differ by less than this, unless the clock was set back between them.
SKEW_SECONDS = 1.0
# When all places are taken: how long until it is worth another look, at least and at most.
LEAST_WAIT, MOST_WAIT = 0.2, 30.0


@dataclass(frozen=True, slots=True)
class Place:
    """Calls that somebody has under way, until when at the latest: whoever died gives nothing back."""

    calls: int
    since: float
    until: float


@dataclass(frozen=True, slots=True)
class State:
    """What the workers share about one destination."""

    trips: int = 0  # how often in a row it was opened; 0: closed
    open_until: float = 0.0
    error: str = ""
    recovered_at: float | None = None
    places: dict[str, Place] = field(default_factory=dict)
    next_at: float = 0.0  # when the next event is on schedule
    tail_at: float = 0.0  # the next turn to be given out
    written_at: float = 0.0  # by the clock of whoever keeps it; 0: unknown

    @property
    def open(self) -> bool:
        return self.trips > 0

    def is_calm(self, now: float) -> bool:
        """Neither open nor just recovered: nothing to agree on, unless there are limits."""
        return not self.open and (self.recovered_at is None or now - self.recovered_at >= RAMP_SECONDS)

    def by_clock(self, now: float) -> Self:
        """Return the state as if it had been written now, if it was written in the future: its clock was set back.

        Without that a destination would be left alone, and its places and turns be taken, for as long as the clock
        was ahead.
        """
        ahead = self.written_at - now
        if ahead <= SKEW_SECONDS:
            return self
        places = {
            holder: Place(place.calls, place.since - ahead, place.until - ahead)
            for holder, place in self.places.items()
        }
        return replace(
            self,
            open_until=self.open_until - ahead,
            recovered_at=None if self.recovered_at is None else self.recovered_at - ahead,
            places=places,
            next_at=self.next_at - ahead,
            tail_at=self.tail_at - ahead,
            written_at=now,
        )

    def to_json(self) -> str:
        return json.dumps(self, default=_fields, separators=(",", ":"), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What another version has written beyond what this one knows is left out."""
        known = _known(cls, json.loads(text))
        places = {holder: Place(**_known(Place, place)) for holder, place in known.pop("places", {}).items()}
        return cls(places=places, **known)


@dataclass(frozen=True, slots=True)
class Request:
    """Who asks, for how many events, with how many calls at once, and how many it can do in its time."""

    holder: str
    events: int
    at_once: int = 1
    hold_seconds: float = 60.0
    per_second: float | None = None  # what one call at a time has been seen to do


@dataclass(frozen=True, slots=True)
class Answer:
    """How many may go now, how many calls at once, and after how many seconds the others' turn begins."""

    events: int
    at_once: int = 0
    probe: bool = False
    open: bool = False
    wait: float = 0.0
    step: float = 0.0  # between one turn and the next
    full: bool = False

    def turn(self, number: int) -> float:
        """How long the so-many-th of those who may not go now has to wait."""
        return min(self.wait + number * self.step, HORIZON_SECONDS)


def ask(state: State, now: float, request: Request, limits: Limits) -> tuple[State, Answer]:
    """May events go now?"""
    if state.open:
        return _ask_open(state, now, request, limits)
    places = {holder: place for holder, place in state.places.items() if place.until > now}
    state = _with_places(state, places)
    calls = min(request.at_once, request.events)
    if limits.concurrency is not None:
        free = limits.concurrency - sum(place.calls for place in places.values())
        if free <= 0:
            age = now - max(place.since for place in places.values())
            return state, Answer(0, full=True, wait=min(max(age, LEAST_WAIT), MOST_WAIT))
        calls = min(calls, free)
    rate = _rate(state, now, limits)
    doable = request.events if request.per_second is None else max(calls, math.ceil(request.per_second * calls))
    events, state = _take_turns(state, now, min(request.events, doable), rate)
    if events and limits.concurrency is not None:
        calls = min(calls, events)
        place = Place(calls, now, now + request.hold_seconds)
        state = _with_places(state, places | {request.holder: place})
    # Those who wait get turns as fast as all places together are: the ones that are taken now will be free again.
    places_in_all = calls if limits.concurrency is None else limits.concurrency
    pace = _least(rate, None if request.per_second is None else request.per_second * places_in_all)
    return _queue_up(state, now, request.events - events, Answer(events, calls), pace)


def hold(state: State, places: dict[str, Place]) -> State:
    """Return the state with these places, whose calls are not over although their time is."""
    return _with_places(state, state.places | places)


def leave(state: State, holder: str) -> State:
    """The calls are over."""
    return _with_places(state, {name: place for name, place in state.places.items() if name != holder})


def trip(state: State, now: float, error: str, *, probe: bool) -> State:
    """It could not be reached, often enough; what somebody else has opened already stays as it is."""
    if state.open and not probe:
        return state
    trips = state.trips + 1
    return replace(state, trips=trips, open_until=now + open_seconds(trips), error=error, recovered_at=None)


def unasked(state: State, now: float) -> State:
    """A probe was not sent after all: another may try."""
    return replace(state, open_until=now) if state.open else state


def recover(state: State, now: float) -> State:
    """It was reached. What is closed already does not recover again."""
    return replace(state, trips=0, open_until=0.0, error="", recovered_at=now, tail_at=now) if state.open else state


def open_seconds(trips: int) -> float:
    return min(OPEN_SECONDS * 2.0 ** min(trips - 1, 60), OPEN_CAP_SECONDS)


def _ask_open(state: State, now: float, request: Request, limits: Limits) -> tuple[State, Answer]:
    opens_at = max(state.open_until, state.next_at if limits.per_second is not None else 0.0)
    if now < opens_at:
        return state, Answer(0, open=True, wait=min(opens_at - now, OPEN_CAP_SECONDS))
    # One at a time: the next may try when this one has had its time, should nothing be heard of it.
    _, state = _take_turns(state, now, 1, limits.per_second)
    probing = replace(state, open_until=now + request.hold_seconds)
    return probing, Answer(1, at_once=1, probe=True, open=True, wait=open_seconds(state.trips))


def _rate(state: State, now: float, limits: Limits) -> float | None:
    """Events a second, if limited."""
    if state.recovered_at is None or state.is_calm(now):
        return limits.per_second
    since = max(0.0, now - state.recovered_at)
    return _least(limits.per_second, RAMP_PER_SECOND * 2.0 ** (since / RAMP_DOUBLES_EVERY))


def _take_turns(state: State, now: float, events: int, rate: float | None) -> tuple[int, State]:
    """As many turns as have come up, and a few that may go together."""
    if rate is None:
        return events, state
    step = 1 / rate
    burst = max(1.0, rate * BURST_SECONDS)
    late = max((burst - 1) * step, min(0.99 * step, BURST_SECONDS))
    base = max(state.next_at, now - late)
    come_up = math.floor((now - base + EXACT_SECONDS) / step) + 1 if base <= now + EXACT_SECONDS else 0
    taken = min(events, come_up)
    return taken, replace(state, next_at=base + taken * step if taken else state.next_at)


def _queue_up(state: State, now: float, left: int, answer: Answer, pace: float | None) -> tuple[State, Answer]:
    """Those who may not go now get turns behind everybody who got one before."""
    if not left or pace is None:
        return state, answer
    step = 1 / pace
    begins_at = max(state.tail_at, state.next_at, now + step * answer.events)
    wait = min(begins_at - now, HORIZON_SECONDS)
    tail_at = min(begins_at + step * left, now + HORIZON_SECONDS)
    return replace(state, tail_at=tail_at), replace(answer, wait=wait, step=step)


def _with_places(state: State, places: dict[str, Place]) -> State:
    """As `replace`, which takes three times as long, for what is done with every batch."""
    if places == state.places:
        return state
    return State(
        state.trips, state.open_until, state.error, state.recovered_at, places, state.next_at, state.tail_at,
        state.written_at,
    )  # fmt: skip


def _fields(thing: State | Place) -> dict[str, Any]:
    """As `dataclasses.asdict`, which copies everything on the way."""
    return {name: getattr(thing, name) for name in thing.__slots__}


def _known(kind: type[Place | State], fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name in kind.__slots__}


def _least(*rates: float | None) -> float | None:
    return min((rate for rate in rates if rate is not None), default=None)
