"""The retry decision: what the outcome of an attempt means for a destination, and for the event.

`after` returns a destination's next entry in `progress`, `row_update` the values for the event's row. An event ends
when all of its entries have ended: failed if any of them failed, else delivered. Until then it is due again at the
earliest of their times. The functions here read and write nothing: they are called while a batch is planned, delivered
and settled.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import assert_never

from outbox.destinations.outcome import Delivered, Failed, Outcome, Retry, was_not_called
from outbox.errors import NewerEvent, Unavailable
from outbox.settings import Settings
from outbox.storage import timestamp
from outbox.storage.models import DELIVERED, FAILED, PENDING
from outbox.storage.progress import NEWER_VERSION, RETIRED, UNREADABLE, ProgressEntry, delivered
from outbox.text import clean_error

LONGEST_WAIT = timedelta(days=3_650)
# Jitter only lengthens a wait: nothing is tried before its backoff is over.
JITTER = 0.25
# An event waits for the end of a pause for at most about so long, and is then put off again. Resuming makes it due at
# once; this is for an operator's command that was killed in between, and for workers that know no pauses.
PAUSED_SECONDS = 3_600.0
# If this worker does not have the destination, the event is put off for this long, so that a worker that has the
# destination can claim it. Each further time the wait doubles, up to a limit.
ABSENT_SECONDS = 2.0
# The limit while a running worker has the destination, and while no running worker has it. The first one is short,
# because the next worker that claims the event may lack the destination too: with a limit of 10 s, one of 150 events
# still waited after four minutes in a fleet of three workers.
ABSENT_CAP_SECONDS, ABSENT_CAP_SECONDS_IF_NOT_RUNNING = 5.0, 60.0


@dataclass(frozen=True, slots=True)
class RowUpdate:
    """The values that are written into the event's row."""

    status: str
    attempts: int
    next_attempt_at: datetime | None
    error: str | None


def after(
    entry: ProgressEntry,
    outcome: Outcome,
    now: datetime,
    max_attempts: int,
    settings: Settings,
    *,
    paused_seconds: float = 0.0,
) -> ProgressEntry:
    """Return a destination's entry after one more outcome.

    `paused_seconds`: for how long the destination has been paused until now, in all. What has been added since the
    first attempt does not count towards OUTBOX_MAX_AGE_HOURS.
    """
    if isinstance(outcome, Delivered):
        return delivered(entry.attempts + 1)
    since, paused_before = (now, paused_seconds) if entry.since is None else (entry.since, entry.paused_before)
    match outcome:
        case Failed(error):
            return ProgressEntry(state=FAILED, attempts=entry.attempts + 1, error=clean_error(error))
        case Retry(error, not_before):
            attempts = entry.attempts + 1
            if attempts >= max_attempts:
                return ProgressEntry(state=FAILED, attempts=attempts, error=clean_error(error))
            due = _due(not_before, backoff(attempts, settings), now)
            # A time that the handler asked for does not count towards OUTBOX_MAX_AGE_HOURS. (A time that comes with
            # Unavailable does: a receiver that always says "later" must not keep an event for ever.)
            asked = 0.0 if not_before is None else max(0.0, (due - now).total_seconds())
            return entry.tried_without_success(
                attempts=attempts,
                waits=0,
                since=since,
                asked_seconds=entry.asked_seconds + asked,
                not_before=due,
                error=clean_error(error),
                paused_before=paused_before,
            )
        case Unavailable():
            waits = entry.waits + 1
            paused = max(0.0, paused_seconds - paused_before)
            if now - since >= timedelta(hours=settings.max_age_hours, seconds=entry.asked_seconds + paused):
                error = f"{outcome.error} (given up after {settings.max_age_hours:g} hours, OUTBOX_MAX_AGE_HOURS)"
                return ProgressEntry(state=FAILED, attempts=entry.attempts, error=clean_error(error))
            due = _due(outcome.not_before, backoff(waits, settings), now)
            return entry.tried_without_success(
                attempts=entry.attempts,
                waits=waits,
                since=since,
                asked_seconds=entry.asked_seconds,
                not_before=due,
                error=clean_error(outcome.error),
                paused_before=paused_before,
            )
        case _:
            assert_never(outcome)


def after_reading(
    entry: ProgressEntry,
    outcome: Outcome,
    now: datetime,
    max_attempts: int,
    settings: Settings,
    *,
    paused_seconds: float = 0.0,
) -> ProgressEntry:
    """Return a destination's entry after one more outcome, which may be that it could not read the event.

    An event that is newer than this code waits for another worker, at no cost. One that does not fit its class costs an
    attempt. The reason stays with the entry, so that the doctor finds it.
    """
    if isinstance(outcome, NewerEvent):
        waiting = after_absence(entry, now, is_running=False)
        return replace(waiting, error=clean_error(outcome.error), reason=NEWER_VERSION)
    following = after(entry, outcome, now, max_attempts, settings, paused_seconds=paused_seconds)
    return replace(following, reason=UNREADABLE) if was_not_called(outcome) else following


def after_absence(entry: ProgressEntry, now: datetime, *, is_running: bool) -> ProgressEntry:
    """Return the next entry of a destination that this worker does not have: it waits for a worker that has it.

    The wait counts neither as an attempt nor towards OUTBOX_MAX_AGE_HOURS. `is_running` says whether a worker that has
    the destination is running.
    """
    wait = absence_wait(entry.absences, is_running=is_running)
    seconds = wait.total_seconds()
    return replace(
        entry,
        absences=entry.absences + 1,
        asked_seconds=entry.asked_seconds + (0.0 if entry.since is None else _overdue(entry, now) + seconds),
        not_before=now + wait,
        error="waits for a worker that has this destination",
        reason=None,
    )


def while_paused(entry: ProgressEntry, until: datetime | None, now: datetime) -> ProgressEntry:
    """Return the next entry of a destination that an operator has paused until then (None: until it is resumed)."""
    longest = now + timedelta(seconds=PAUSED_SECONDS * (1 + random.uniform(0, JITTER)))  # noqa: S311  (spreads load)
    return entry.paused(longest if until is None else min(longest, until))


def absence_wait(waits: int, *, is_running: bool = False) -> timedelta:
    """Return how long to wait for another worker that has the destination, after this many waits for it."""
    cap = ABSENT_CAP_SECONDS if is_running else ABSENT_CAP_SECONDS_IF_NOT_RUNNING
    seconds = min(ABSENT_SECONDS * 2.0 ** min(waits, 10), cap)
    return timedelta(seconds=seconds * (1 + random.uniform(0, JITTER)))  # noqa: S311  (spreads load, guards nothing)


def _overdue(entry: ProgressEntry, now: datetime) -> float:
    """Return how many seconds ago the wait for another worker was over: no worker has had time for the event since."""
    if not entry.absences or entry.not_before is None:
        return 0.0
    return max(0.0, (now - entry.not_before).total_seconds())


def row_update(progress: Mapping[str, ProgressEntry], waits: Collection[str] = ()) -> RowUpdate:
    """Return the values for the event's row, from the entries of its destinations.

    At the destinations in `waits` it waits behind an earlier event of its ordering key. If it waits at all that are
    left, it is parked: not due until it is released.
    """
    if len(progress) == 1:
        (only,) = progress.values()
        if only.state == DELIVERED:
            return _delivered(only.attempts)
        if only.state == FAILED:
            return RowUpdate(FAILED, only.attempts, None, _errors(progress))
        if only.is_open and not waits and only.not_before is not None:
            return RowUpdate(PENDING, only.attempts, only.not_before, _errors(progress))
    if all(entry.state in (DELIVERED, RETIRED) for entry in progress.values()):
        return _delivered(max((entry.attempts for entry in progress.values()), default=0))
    waiting = {name: entry for name, entry in progress.items() if entry.is_open}
    failed = {name: entry for name, entry in progress.items() if entry.state == FAILED}
    if waiting:
        due = [
            entry.not_before for name, entry in waiting.items() if entry.not_before is not None and name not in waits
        ]
        attempts = max(entry.attempts for entry in waiting.values())
        return RowUpdate(PENDING, attempts, min(due, default=timestamp.LATEST), _errors(waiting | failed))
    attempts = max(entry.attempts for entry in progress.values())
    return RowUpdate(FAILED, attempts, None, _errors(failed))


@cache
def _delivered(attempts: int) -> RowUpdate:
    return RowUpdate(DELIVERED, attempts, None, None)


def backoff(n: int, settings: Settings) -> timedelta:
    """Return the wait before retry n: `min(base × 2^(n-1), cap)`, and up to a quarter longer with jitter."""
    # The exponent is limited, because a larger one would overflow a float. No cap is as long as 2^60 times the base.
    seconds = min(settings.backoff_base_seconds * 2.0 ** min(n - 1, 60), settings.backoff_cap_seconds)
    if settings.backoff_jitter:
        seconds *= 1 + random.uniform(0, JITTER)  # noqa: S311  (spreads load, guards nothing)
    return timedelta(seconds=seconds)


def _due(not_before: datetime | timedelta | None, usual: timedelta, now: datetime) -> datetime:
    """Return when the event is due again: after the usual wait, or when the destination asks for, within limits."""
    if not_before is None:
        return now + usual
    if isinstance(not_before, timedelta):
        return now + min(max(not_before, timedelta(0)), LONGEST_WAIT)
    if not_before.tzinfo is None:
        raise ValueError("not_before must have a timezone: use datetime.now(UTC) or .replace(tzinfo=UTC)")
    return min(max(not_before, timestamp.EARLIEST), now + LONGEST_WAIT).astimezone(UTC)


def _errors(progress: Mapping[str, ProgressEntry]) -> str | None:
    """Return `name: error` for each entry that has an error, or None if none has."""
    texts = [f"{name}: {entry.error}" for name, entry in progress.items() if entry.error is not None]
    return clean_error("; ".join(texts)) if texts else None
