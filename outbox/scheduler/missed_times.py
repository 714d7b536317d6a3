"""Find the scheduled times that are due, and decide which of them are run.

Usually exactly one time is due. There are more if no scheduler ran for a while, or if the database was unavailable.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from outbox.destinations.periodic_job import ALL, NONE, Schedule

# How many missed times are run with catch_up="all": the latest ones.
MOST_RUNS = 100
# With catch_up="none", a time that is later than this is not run. A scheduler that is replaced by another takes less.
GRACE = timedelta(minutes=1)

_MICROSECOND = timedelta(microseconds=1)
_SECOND = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class DueTimes:
    """The scheduled times to run, in order, and the last one that has passed, whether it is run or not."""

    runs: list[datetime]
    last: datetime
    # The latest time that has passed and is not run; None if all are.
    missed: datetime | None


def due_times(schedule: Schedule, catch_up: str, after: datetime, now: datetime) -> DueTimes | None:
    """Return the times that are due: those after `after`, up to `now`. Return None if there is none."""
    times = _first_times(schedule, after, now, MOST_RUNS + 1)
    if not times:
        return None
    if len(times) > MOST_RUNS:
        times = _latest_times(schedule, after, now, MOST_RUNS + 1)
    runs = times[-MOST_RUNS:] if catch_up == ALL else times[-1:]
    if catch_up == NONE and now - times[-1] > GRACE:
        runs = []
    not_run = [time for time in times if time not in runs]
    return DueTimes(runs, times[-1], not_run[-1] if not_run else None)


def _first_times(schedule: Schedule, after: datetime, until: datetime, most: int) -> list[datetime]:
    times: list[datetime] = []
    while len(times) < most and (after := schedule.next_after(after)) <= until:
        times.append(after)
    return times


def _latest_times(schedule: Schedule, after: datetime, until: datetime, most: int) -> list[datetime]:
    times: list[datetime] = []
    while len(times) < most and (time := _latest_time(schedule, after, until)) is not None:
        times.append(time)
        until = time - _MICROSECOND
    return times[::-1]


def _latest_time(schedule: Schedule, after: datetime, until: datetime) -> datetime | None:
    """Return the last scheduled time after `after`, up to `until`.

    A trigger only finds the next time, and there may be millions of them. So it is asked from the middle of the
    remaining span again and again: it has a next time within the span, or the second half of the span has none.
    """
    found: datetime | None = None
    low, high = after, until
    while high - low > _SECOND:
        middle = low + (high - low) / 2
        time = schedule.next_after(middle)
        if time <= until:
            found = low = time
        else:
            high = middle
    # The second that remains, and what the search has passed over: a time in the hour that a change to summer time
    # leaves out is found only from before that hour.
    time = schedule.next_after(after if found is None else found)
    while time <= until:
        found, time = time, schedule.next_after(time)
    return found
