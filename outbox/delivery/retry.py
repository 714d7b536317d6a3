"""What an outcome means for an event: pure decisions, from values to values.

`progress` holds a `Standing` per destination. An event ends when all of them have ended: failed if any failed, else
delivered. Until then it is due again at the earliest of their times.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Self, assert_never

from outbox.destinations.outcome import Delivered, Failed, Outcome, Retry
from outbox.errors import Unavailable
from outbox.settings import Settings
from outbox.storage import timestamp
from outbox.storage.models import DELIVERED, FAILED, PENDING

ERROR_LENGTH = 2_000
LONGEST_WAIT = timedelta(days=3_650)
# Jitter only lengthens a wait: nothing is tried before its backoff is over.
JITTER = 0.25
# An event that waits for a worker with a destination that this one lacks is claimed again after so long: such a worker
# may be the one that claims it. Less and less often, in the end after so long; later still while none runs that has it.
ABSENT_SECONDS, MOST_ABSENT_SECONDS, MOST_ABSENT_SECONDS_WITHOUT = 2.0, 10.0, 60.0
WAITING = "waiting"
# The destination was retired before it had the event: it ends, and has not failed.
RETIRED = "retired"
# Stands in `progress` for every destination that is not named there: an event that is replayed to one alone.
OTHERS = "(others)"
# Stands there for the handler that is missing; it makes way for the first destination that wants the event.
NOBODY = "(nobody)"


@dataclass(frozen=True, slots=True)
class Standing:
    """How far one destination is with one event."""

    state: str = WAITING
    attempts: int = 0
    waits: int = 0
    # How often a worker had the event that did not have this destination.
    absences: int = 0
    since: datetime | None = None
    # Of the time since then, how much a RetryLater or a receiver has asked for, or no worker was there for: it does not
    # count towards the age.
    asked_seconds: float = 0.0
    not_before: datetime | None = None
    error: str | None = None

    @property
    def open(self) -> bool:
        return self.state == WAITING

    def is_due(self, now: datetime) -> bool:
        return self.open and (self.not_before is None or self.not_before <= now)

    def put_off(self, now: datetime) -> Self:
        """Due, but not tried: it stays due, at no cost."""
        return self if self.not_before is not None else replace(self, not_before=now)

    def postponed(self, until: datetime) -> Self:
        """Not tried, at no cost: others come first."""
        return replace(self, not_before=until)

    def left_to_another_worker(self, now: datetime, *, is_running: bool) -> Self:
        """Wait for a worker that has the destination, at no cost: neither an attempt nor age."""
        most = MOST_ABSENT_SECONDS if is_running else MOST_ABSENT_SECONDS_WITHOUT
        seconds = min(ABSENT_SECONDS * 2.0 ** min(self.absences, 10), most)
        seconds *= 1 + random.uniform(0, JITTER)  # noqa: S311  (spreads load, guards nothing)
        return replace(
            self,
            absences=self.absences + 1,
            asked_seconds=self.asked_seconds + (0.0 if self.since is None else self._late(now) + seconds),
            not_before=now + timedelta(seconds=seconds),
            error="waits for a worker that has this destination",
        )

    def _late(self, now: datetime) -> float:
        """Return for how long it has been due, since it was left to another worker."""
        if not self.absences or self.not_before is None:
            return 0.0
        return max(0.0, (now - self.not_before).total_seconds())

    def retired(self) -> Self:
        """End without delivering: the destination is gone for good."""
        return replace(self, state=RETIRED, not_before=None, error=None)

    def reopened(self) -> Self:
        """Wait again, if it had ended because the destination was retired: it is back."""
        return replace(self, state=WAITING) if self.state == RETIRED else self

    def to_json(self) -> dict[str, Any]:
        fields = {
            "state": self.state,
            "attempts": self.attempts,
            "waits": self.waits,
            "absences": self.absences,
            "since": None if self.since is None else timestamp.to_text(self.since),
            "asked_seconds": self.asked_seconds,
            "not_before": None if self.not_before is None else timestamp.to_text(self.not_before),
            "error": self.error,
        }
        return {name: value for name, value in fields.items() if value is not None and value != 0}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Self:
        since, not_before = entry.get("since"), entry.get("not_before")
        return cls(
            state=entry.get("state", WAITING),
            attempts=entry.get("attempts", 0),
            waits=entry.get("waits", 0),
            absences=entry.get("absences", 0),
            since=None if since is None else timestamp.from_database(since),
            asked_seconds=entry.get("asked_seconds", 0.0),
            not_before=None if not_before is None else timestamp.from_database(not_before),
            error=entry.get("error"),
        )


NEW = Standing()


def to_progress(standings: Mapping[str, Standing], scheduled_at: datetime | None) -> dict[str, Any]:
    """Return what is written into `progress`. Each retry changes the due time; the first, `scheduled_at`, stays."""
    first_due = {} if scheduled_at is None else {"first_due": timestamp.to_text(scheduled_at)}
    return {name: standing.to_json() | (first_due if standing.open else {}) for name, standing in standings.items()}


def first_due_in(progress: Mapping[str, Mapping[str, Any]]) -> datetime | None:
    """Return when the event was first due, if `progress` says so. An entry that others have damaged says nothing."""
    for entry in progress.values():
        if entry and "first_due" in entry:
            return timestamp.from_database(entry["first_due"])
    return None


def was_put_off(progress: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether the due time is that of a retry; an event that an operator has put back begins anew."""
    return any(entry and "not_before" in entry for entry in progress.values())


@cache
def delivered(attempts: int) -> Standing:
    """The usual end, made once: attempts are few."""
    return Standing(state=DELIVERED, attempts=attempts)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is written into the event's row."""

    status: str
    attempts: int
    next_attempt_at: datetime | None
    error: str | None


def after(standing: Standing, outcome: Outcome, now: datetime, max_attempts: int, settings: Settings) -> Standing:
    """A destination's standing after one more outcome."""
    if isinstance(outcome, Delivered):
        return delivered(standing.attempts + 1)
    since = standing.since if standing.since is not None else now
    match outcome:
        case Failed(error):
            return Standing(state=FAILED, attempts=standing.attempts + 1, error=clean(error))
        case Retry(error, not_before):
            attempts = standing.attempts + 1
            if attempts >= max_attempts:
                return Standing(state=FAILED, attempts=attempts, error=clean(error))
            due = _due(not_before, backoff(attempts, settings), now)
            asked = 0.0 if not_before is None else max(0.0, (due - now).total_seconds())
            return replace(
                standing,
                attempts=attempts,
                waits=0,
                since=since,
                asked_seconds=standing.asked_seconds + asked,
                not_before=due,
                error=clean(error),
            )
        case Unavailable():
            waits = standing.waits + 1
            if now - since >= timedelta(hours=settings.max_age_hours, seconds=standing.asked_seconds):
                error = f"{outcome.error} (given up after {settings.max_age_hours:g} hours, OUTBOX_MAX_AGE_HOURS)"
                return Standing(state=FAILED, attempts=standing.attempts, error=clean(error))
            due = _due(outcome.not_before, backoff(waits, settings), now)
            return replace(standing, waits=waits, since=since, not_before=due, error=clean(outcome.error))
        case _:
            assert_never(outcome)


def verdict(standings: Mapping[str, Standing]) -> Verdict:
    """The event's own state, from its destinations'."""
    if len(standings) == 1:
        (only,) = standings.values()
        if only.state == DELIVERED:
            return _delivered(only.attempts)
    if all(standing.state in (DELIVERED, RETIRED) for standing in standings.values()):
        return _delivered(max((standing.attempts for standing in standings.values()), default=0))
    waiting = {name: standing for name, standing in standings.items() if standing.open}
    failed = {name: standing for name, standing in standings.items() if standing.state == FAILED}
    if waiting:
        due = [standing.not_before for standing in waiting.values() if standing.not_before is not None]
        attempts = max(standing.attempts for standing in waiting.values())
        return Verdict(PENDING, attempts, min(due), _errors(waiting | failed))
    attempts = max(standing.attempts for standing in standings.values())
    return Verdict(FAILED, attempts, None, _errors(failed))


@cache
def _delivered(attempts: int) -> Verdict:
    return Verdict(DELIVERED, attempts, None, None)


def backoff(n: int, settings: Settings) -> timedelta:
    """The wait before retry n: `min(base × 2^(n-1), cap)`, a little longer with jitter."""
    # 2^60 bases are beyond any cap; more would overflow a float.
    seconds = min(settings.backoff_base_seconds * 2.0 ** min(n - 1, 60), settings.backoff_cap_seconds)
    if settings.backoff_jitter:
        seconds *= 1 + random.uniform(0, JITTER)  # noqa: S311  (spreads load, guards nothing)
    return timedelta(seconds=seconds)


def clean(error: str) -> str:
    """An error text that every database can store: no NUL, no lone surrogates, not endless."""
    text = error.replace("\x00", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()
    return text if len(text) <= ERROR_LENGTH else text[: ERROR_LENGTH - 1] + "…"


def _due(not_before: datetime | timedelta | None, usual: timedelta, now: datetime) -> datetime:
    """Return when it is due again: what was asked for, within what can be stored and read again."""
    if not_before is None:
        return now + usual
    if isinstance(not_before, timedelta):
        return now + min(max(not_before, timedelta(0)), LONGEST_WAIT)
    if not_before.tzinfo is None:
        raise ValueError("not_before must have a timezone: use datetime.now(UTC) or .replace(tzinfo=UTC)")
    return min(max(not_before, timestamp.EARLIEST), now + LONGEST_WAIT).astimezone(UTC)


def _errors(standings: Mapping[str, Standing]) -> str | None:
    """`name: what went wrong`, for each that has an error."""
    texts = [f"{name}: {standing.error}" for name, standing in standings.items() if standing.error is not None]
    return clean("; ".join(texts)) if texts else None
