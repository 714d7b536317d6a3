"""A periodic job's schedule: a cron expression in a timezone, or an interval that is counted from the epoch.

APScheduler's triggers calculate the times. They are asked without the time of the process's start or of an earlier run,
so that all schedulers calculate the same times.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from apscheduler.triggers.interval import IntervalTrigger

from outbox.errors import RegistrationError
from outbox.scheduler import crontab
from outbox.scheduler.schedule_words import cron_in_words, interval_in_words
from outbox.storage import timestamp

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DEFAULT_TIMEZONE = "UTC"
# The scheduler looks once a second.
SHORTEST = timedelta(seconds=1)
LONGEST = timedelta(days=3_650)

# From the longest to the shortest.
UNITS = ("weeks", "days", "hours", "minutes", "seconds")


@dataclass(frozen=True, slots=True)
class Schedule:
    """When a periodic job runs."""

    # As declared: `0 3 * * *` or `minutes=5`.
    text: str
    words: str
    timezone: str
    # Its times are those of all triggers together.
    triggers: Sequence[Any]

    def next_after(self, moment: datetime) -> datetime:
        """Return the first scheduled time that is later than `moment`, in UTC."""
        start = moment + timedelta(microseconds=1)
        while True:
            times = [trigger.get_next_fire_time(None, start) for trigger in self.triggers]
            found = min((time.astimezone(UTC) for time in times if time is not None), default=timestamp.LATEST)
            if found > moment:
                return found
            start += timedelta(seconds=1)  # a trigger calculates with floating-point numbers


def make_schedule(cron: str | None, units: Mapping[str, float | None], timezone: str) -> Schedule:
    """Return the schedule that was declared; raise RegistrationError if it is invalid.

    Either `cron` or some of the `units` (such as `minutes`) must be given.
    """
    given = {unit: value for unit, value in units.items() if value is not None}
    if cron is not None and given:
        raise RegistrationError(f"A periodic job has either cron or an interval, not both: {_shown(cron, given)}.")
    if cron is None and not given:
        raise RegistrationError(
            'A periodic job needs a schedule: @outbox.periodic(cron="0 3 * * *") or @outbox.periodic(minutes=5).'
        )
    zone = _zone(timezone)
    if cron is None:
        return _interval(given, timezone)
    fields = crontab.parse(cron)
    now = datetime.now(UTC)
    triggers = [trigger for trigger in fields.triggers(zone) if trigger.get_next_fire_time(None, now) is not None]
    return Schedule(" ".join(cron.split()), cron_in_words(fields), timezone, triggers)


def _interval(given: Mapping[str, Any], timezone: str) -> Schedule:
    for unit, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise RegistrationError(f"{unit} must be a number, not {value!r}.")
    try:
        interval = timedelta(**given)
    except OverflowError:
        interval = timedelta.max
    if not SHORTEST <= interval <= LONGEST or interval.microseconds:
        raise RegistrationError(
            f"The interval of a periodic job must be a whole number of seconds, from 1 second to {LONGEST.days} days; "
            f"{_shown(None, given)} is not."
        )
    if timezone != DEFAULT_TIMEZONE:
        raise RegistrationError(
            f"timezone={timezone!r} has no effect on an interval, which is counted from 1970-01-01 00:00 UTC. For a "
            'time of the day in a timezone use cron, such as cron="0 3 * * *".'
        )
    parts = _split(interval)
    trigger = IntervalTrigger(seconds=int(interval.total_seconds()), start_date=EPOCH, timezone=UTC)
    text = ", ".join(f"{unit}={value}" for unit, value in parts.items())
    return Schedule(text, interval_in_words(parts), timezone, [trigger])


def _split(interval: timedelta) -> dict[str, int]:
    """Return the interval in the largest units that it is made of: 90 seconds are a minute and 30 seconds."""
    parts, left = {}, interval
    for unit in UNITS:
        value, left = divmod(left, timedelta(**{unit: 1}))
        if value:
            parts[unit] = value
    return parts


def _zone(name: object) -> ZoneInfo:
    try:
        return ZoneInfo(name)  # type: ignore[arg-type]  # whatever it is, the error says so
    except (ValueError, OSError, KeyError, TypeError, AttributeError):
        raise RegistrationError(
            f'There is no timezone {name!r}. Use a name such as "Europe/Berlin" or "UTC"; if this system has no '
            "timezone database, `pip install tzdata`."
        ) from None


def _shown(cron: str | None, given: Mapping[str, float]) -> str:
    parts = [] if cron is None else [f"cron={cron!r}"]
    return ", ".join([*parts, *(f"{unit}={value!r}" for unit, value in given.items())])
