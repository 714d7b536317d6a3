"""Say a schedule in words: "at 03:00 from Monday to Friday", "every 5 minutes"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from outbox.scheduler.crontab import WEEKDAYS, Crontab

WEEKDAY_NAMES = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
MONTH_NAMES = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
WORKDAYS = "mon,tue,wed,thu,fri"
# More times of a day than this are not listed one by one.
MOST_TIMES = 6


def interval_in_words(parts: Mapping[str, int]) -> str:
    """Return `every 5 minutes`; `parts` are the units and their numbers."""
    if list(parts.values()) == [1]:
        return f"every {next(iter(parts)).removesuffix('s')}"
    return "every " + join(
        [f"{value} {unit if value > 1 else unit.removesuffix('s')}" for unit, value in parts.items()]
    )


def cron_in_words(fields: Crontab) -> str:
    """Return when the expression's times are, without the timezone."""
    time, has_time_of_day = _time(fields.minute, fields.hour)
    days = _days(fields)
    month = "" if fields.month == "*" else f" in {_months(fields.month)}"
    if not days and not month:
        return f"{time} every day" if has_time_of_day else time
    return f"{time}{days or (' every day' if has_time_of_day else '')}{month}"


def _time(minute: str, hour: str) -> tuple[str, bool]:
    """Return the words for minute and hour, and whether they are times of the day, which come once a day."""
    minutes, hours = minute.split(","), hour.split(",")
    if all(each.isdecimal() for each in (*minutes, *hours)) and len(minutes) * len(hours) <= MOST_TIMES:
        times = [f"{int(h):02}:{int(m):02}" for h, m in product(hours, minutes)]
        return f"at {join(sorted(times))}", True
    if minute == "*":
        words = "every minute"
    elif minute.startswith("*/"):
        words = f"every {minute[2:]} minutes"
    else:
        words = f"at minute{'s' if len(minutes) > 1 or '-' in minute or '/' in minute else ''} {_list(minute)}"
    if hour == "*":
        return words if minute.startswith("*") else f"{words} of every hour", False
    if hour.startswith("*/"):
        return f"{words}, every {hour[2:]} hours", False
    return f"{words}, in the {'hours' if len(hours) > 1 or '-' in hour else 'hour'} {_list(hour)}", False


def _days(fields: Crontab) -> str:
    weekdays = "" if fields.is_any_weekday else _weekdays(fields.day_of_week)
    if fields.day == "*":
        return weekdays
    if fields.day == "last":
        day = " on the last day of the month"
    elif fields.day.startswith("*/"):
        day = f" every {fields.day[2:]} days of the month"
    else:
        word = "days" if any(sign in fields.day for sign in ",-/") else "day"
        day = f" on {word} {_list(fields.day)} of the month"
    if not weekdays:
        return day
    return f"{day}, if that is{weekdays}" if fields.day.startswith("*") else f"{day}, and{weekdays}"


def _weekdays(text: str) -> str:
    if text == WORKDAYS:
        return " from Monday to Friday"
    days = sorted(text.split(","), key=lambda day: day == WEEKDAYS[0])  # Sunday last
    return " on " + join([WEEKDAY_NAMES[WEEKDAYS.index(day)] for day in days])


def _months(text: str) -> str:
    return join([_month(part) for part in text.split(",")])


def _month(part: str) -> str:
    first, dash, last = part.partition("-")
    names = [_month_name(each) for each in ([first, last] if dash else [first])]
    return " to ".join(names)


def _month_name(text: str) -> str:
    if text.isdecimal():
        return MONTH_NAMES[int(text) - 1]
    return MONTH_NAMES[MONTHS.index(text)] if text in MONTHS else text


def _list(text: str) -> str:
    """Return the parts of a field: `1,15` as "1 and 15", `9-17` as "9 to 17"."""
    return join([part.replace("-", " to ").replace("/", ", every ") for part in text.split(",")])


def join(parts: Sequence[str]) -> str:
    """Return `a`, `a and b`, or `a, b and c`."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
