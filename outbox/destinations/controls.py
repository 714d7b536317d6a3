"""What operators have decided about destinations at run time: which are paused, and which are throttled.

The row `controls` of the control table holds it, as JSON. A change also changes the version of the recorded
destinations, which every claim returns: so workers read the controls again with their next claim, and a claim costs no
query for them.

A pause holds back new attempts. It costs no attempt, and the time that a destination is paused does not count towards
OUTBOX_MAX_AGE_HOURS: `paused_seconds` counts for how long each destination has been paused in all, and an event that is
retried remembers what it was at its first attempt.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Self

from outbox.storage import timestamp
from outbox.storage.dialect import Dialect

logger = logging.getLogger(__name__)

# Stands for all destinations, and for jobs and runs.
EVERYTHING = "*"


@dataclass(frozen=True, slots=True)
class Pause:
    """A destination, or everything, gets nothing from `since` until `until`; None: until an operator resumes it."""

    since: datetime
    until: datetime | None = None
    by: str = ""
    reason: str | None = None

    def is_active(self, now: datetime) -> bool:
        return self.until is None or now < self.until

    def seconds(self, now: datetime) -> float:
        """Return how long it has lasted."""
        end = now if self.until is None else min(now, self.until)
        return max(0.0, (end - self.since).total_seconds())


@dataclass(frozen=True, slots=True)
class Throttle:
    """A destination gets at most `per_second` events a second until `until`; None: until an operator ends it."""

    per_second: float
    since: datetime
    until: datetime | None = None
    by: str = ""

    def is_active(self, now: datetime) -> bool:
        return self.until is None or now < self.until


@dataclass(frozen=True, slots=True)
class Controls:
    """All pauses and throttles, by destination; EVERYTHING is the name of the pause of all of them."""

    pauses: Mapping[str, Pause] = field(default_factory=dict)
    throttles: Mapping[str, Throttle] = field(default_factory=dict)
    # When an operator last said that a destination can be reached again.
    reached: Mapping[str, datetime] = field(default_factory=dict)
    # How long each destination was paused, without the pauses in `pauses`.
    paused_seconds: Mapping[str, float] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.pauses or self.throttles or self.reached or self.paused_seconds)

    def pause_of(self, name: str, now: datetime) -> Pause | None:
        """Return the pause of this destination or of everything, whichever ends later; None if neither is paused."""
        found = [
            pause
            for each in (name, EVERYTHING)
            if (pause := self.pauses.get(each)) is not None and pause.is_active(now)
        ]
        return max(found, key=lambda pause: timestamp.LATEST if pause.until is None else pause.until, default=None)

    def rate_of(self, name: str, now: datetime) -> float | None:
        """Return how many events a second the destination may get; None if it is not throttled."""
        throttle = self.throttles.get(name)
        return throttle.per_second if throttle is not None and throttle.is_active(now) else None

    def paused_for(self, name: str, now: datetime) -> float:
        """Return for how many seconds the destination has been paused until now, in all.

        A time in which both it and everything was paused counts twice: events get more time then, never less.
        """
        total = 0.0
        for each in (name, EVERYTHING):
            pause = self.pauses.get(each)
            total += self.paused_seconds.get(each, 0.0) + (0.0 if pause is None else pause.seconds(now))
        return total

    def active(self, now: datetime) -> Self:
        """Return the controls without pauses and throttles that are over; their seconds are counted."""
        current = self
        for name, pause in self.pauses.items():
            if not pause.is_active(now):
                current = current.without_pause(name, now)
        throttles = {name: each for name, each in self.throttles.items() if each.is_active(now)}
        return replace(current, throttles=throttles)

    def with_pause(self, name: str, pause: Pause, now: datetime) -> Self:
        """Return the controls with this pause in place of the one that the destination may have."""
        return replace(self.without_pause(name, now), pauses={**self.pauses, name: pause})

    def without_pause(self, name: str, now: datetime) -> Self:
        """Return the controls without the destination's pause."""
        pause = self.pauses.get(name)
        if pause is None:
            return self
        total = self.paused_seconds.get(name, 0.0) + pause.seconds(now)
        pauses = {each: other for each, other in self.pauses.items() if each != name}
        return replace(self, pauses=pauses, paused_seconds={**self.paused_seconds, name: total})

    def with_throttle(self, name: str, throttle: Throttle | None) -> Self:
        """Return the controls with this throttle of the destination; without any for None."""
        others = {each: other for each, other in self.throttles.items() if each != name}
        return replace(self, throttles=others if throttle is None else {**others, name: throttle})

    def to_json(self) -> str:
        return json.dumps(
            {
                "pauses": {name: _to_fields(each) for name, each in self.pauses.items()},
                "throttles": {name: _to_fields(each) for name, each in self.throttles.items()},
                "reached": {name: timestamp.to_text(moment) for name, moment in self.reached.items()},
                "paused_seconds": dict(self.paused_seconds),
            }
        )

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Return the controls in the decoded JSON. Keys that only another version of the library knows are ignored."""
        return cls(
            pauses={name: Pause(**_from_fields(Pause, each)) for name, each in value.get("pauses", {}).items()},
            throttles={
                name: Throttle(**_from_fields(Throttle, each)) for name, each in value.get("throttles", {}).items()
            },
            reached={name: timestamp.from_database(text) for name, text in value.get("reached", {}).items()},
            paused_seconds={name: float(seconds) for name, seconds in value.get("paused_seconds", {}).items()},
        )


NO_CONTROLS = Controls()


def read_controls(dialect: Dialect) -> tuple[Controls, datetime]:
    """Return the controls in the table, and the time by the database's clock.

    If the row is missing (in tables of an older version), or can't be read because it was changed by hand, the controls
    are empty: deliveries go on.
    """
    value, now = dialect.run(dialect.statements.controls).fetchone()
    return _parsed(value), timestamp.from_database(now)


def _parsed(value: object) -> Controls:
    try:
        decoded = json.loads(value) if isinstance(value, str) else value
        return NO_CONTROLS if decoded is None else Controls.from_json(decoded)  # type: ignore[arg-type]
    except (ValueError, TypeError, AttributeError) as error:
        logger.error(  # noqa: TRY400  (a traceback would quote the value)
            "The row 'controls' of the control table can't be read, so no destination is paused or throttled: %s. Set "
            "its value to null, and pause again what has to be paused.",
            type(error).__name__,
        )
        return NO_CONTROLS


_TIMES = ("since", "until")


def _to_fields(value: Pause | Throttle) -> dict[str, Any]:
    fields = {name: getattr(value, name) for name in value.__slots__}
    shown = {name: timestamp.to_text(each) if isinstance(each, datetime) else each for name, each in fields.items()}
    return {name: each for name, each in shown.items() if each is not None}


def _from_fields(kind: type[Pause | Throttle], fields: Mapping[str, Any]) -> dict[str, Any]:
    known = {name: value for name, value in fields.items() if name in kind.__slots__}
    return {name: timestamp.from_database(value) if name in _TIMES else value for name, value in known.items()}
