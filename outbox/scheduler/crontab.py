"""Read cron expressions as crontab(5) means them, and make APScheduler's triggers from them.

APScheduler differs from cron in two ways, which are made up for here. It counts the days of the week from Monday (0);
cron counts from Sunday (0 and 7). And if both the day of the month and the day of the week are restricted, APScheduler
wants both to match; cron runs on days that match either.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from apscheduler.triggers.cron import CronTrigger

from outbox.errors import RegistrationError

# APScheduler's names of the fields, and what an error calls them.
FIELDS = {
    "minute": "minute",
    "hour": "hour",
    "day": "day of the month",
    "month": "month",
    "day_of_week": "day of the week",
}
# In cron's order; Sunday is both 0 and 7.
WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_WEEKDAY_PART = re.compile(r"(?P<first>\*|\d+|[a-z]{3})(?:-(?P<last>\d+|[a-z]{3}))?(?:/(?P<step>\d+))?")


@dataclass(frozen=True, slots=True)
class Crontab:
    """A cron expression: its five fields, with the days of the week as names."""

    minute: str
    hour: str
    day: str
    month: str
    day_of_week: str

    @property
    def is_any_weekday(self) -> bool:
        return self.day_of_week == "*"

    def triggers(self, zone: ZoneInfo) -> tuple[CronTrigger, ...]:
        """Return the triggers whose times together are those of the expression."""
        by_day = CronTrigger(
            minute=self.minute,
            hour=self.hour,
            day=self.day,
            month=self.month,
            day_of_week="*" if self._is_either_day else self.day_of_week,
            timezone=zone,
        )
        if not self._is_either_day:
            return (by_day,)
        by_weekday = CronTrigger(
            minute=self.minute, hour=self.hour, month=self.month, day_of_week=self.day_of_week, timezone=zone
        )
        return by_day, by_weekday

    @property
    def _is_either_day(self) -> bool:
        # As cron does: a field that begins with a star does not restrict the days.
        return not self.day.startswith("*") and not self.is_any_weekday


def parse(expression: object) -> Crontab:
    """Return the fields of a cron expression; raise RegistrationError, with the field that is invalid."""
    if not isinstance(expression, str):
        raise RegistrationError(f'cron must be text, such as cron="0 3 * * *", not {type(expression).__name__}.')
    texts = expression.split()
    if len(texts) != len(FIELDS):
        raise RegistrationError(
            f"cron={expression!r} has {len(texts)} fields, and needs 5: minute, hour, day of the month, month, day of "
            'the week. For example, "0 3 * * *" is every day at 03:00.'
        )
    given = dict(zip(FIELDS, map(str.lower, texts), strict=True))
    for field, text in given.items():
        try:
            given[field] = _weekdays(text) if field == "day_of_week" else text
            CronTrigger(**{field: given[field]}, timezone=UTC)
        except ValueError as error:
            why = re.sub("^Error validating expression .*?: ", "", str(error))
            raise RegistrationError(
                f"cron={expression!r}: the field {FIELDS[field]} is {text!r}, which is invalid: {why}."
            ) from None
    crontab = Crontab(**given)
    if all(
        trigger.get_next_fire_time(None, datetime.now(UTC)) is None for trigger in crontab.triggers(ZoneInfo("UTC"))
    ):
        raise RegistrationError(
            f"cron={expression!r} never comes: no month {given['month']!r} has the day {given['day']!r}."
        )
    return crontab


def _weekdays(text: str) -> str:
    """Return the field of the days of the week with the names of the days, each written out; "*" for all of them."""
    days = sorted({day for part in text.split(",") for day in _weekdays_of(part)})
    return "*" if len(days) == len(WEEKDAYS) else ",".join(WEEKDAYS[day] for day in days)


def _weekdays_of(part: str) -> set[int]:
    match = _WEEKDAY_PART.fullmatch(part)
    if match is None:
        raise ValueError('write 0 to 7 or sun to sat, such as "1-5" or "mon,thu"')
    step = 1 if match["step"] is None else int(match["step"])
    if step == 0:
        raise ValueError("the step must be at least 1")
    if match["first"] == "*":
        if match["last"] is not None:
            raise ValueError("a range needs a first and a last day")
        return set(range(0, len(WEEKDAYS), step))
    first = _weekday(match["first"])
    if match["last"] is not None:
        last = _weekday(match["last"])
        last = len(WEEKDAYS) if last == 0 < first else last  # fri-sun: Sunday is the last day, 7
    else:
        last = first if match["step"] is None else len(WEEKDAYS) - 1
    if last < first:
        raise ValueError("the first day of a range must not come after the last; Sunday is 0, or 7 at the end")
    return {day % len(WEEKDAYS) for day in range(first, last + 1, step)}


def _weekday(text: str) -> int:
    if text.isdecimal():
        if int(text) > len(WEEKDAYS):
            raise ValueError("the days are 0 to 7; both 0 and 7 are Sunday")
        return int(text)
    if text not in WEEKDAYS:
        raise ValueError(f"the days are {', '.join(WEEKDAYS)}")
    return WEEKDAYS.index(text)
