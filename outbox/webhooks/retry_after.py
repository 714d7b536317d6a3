"""The Retry-After header: how long a receiver wants to be left alone."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

SHORTEST = timedelta(seconds=1)
LONGEST = timedelta(hours=24)

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTH = f"(?P<month>{'|'.join(_MONTHS)})"
_TIME = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
# The three that HTTP knows, spelled out: what Python's own parsers take depends on the locale, or is far more.
_DATES = tuple(
    re.compile(pattern, re.ASCII)
    for pattern in (
        rf"[A-Z][a-z]{{2}}, (?P<day>\d\d) {_MONTH} (?P<year>\d{{4}}) {_TIME} GMT",  # Sun, 06 Nov 1994 08:49:37 GMT
        rf"[A-Z][a-z]{{5,8}}, (?P<day>\d\d)-{_MONTH}-(?P<year>\d\d) {_TIME} GMT",  # Sunday, 06-Nov-94 08:49:37 GMT
        rf"[A-Z][a-z]{{2}} {_MONTH} (?P<day>[ \d]\d) {_TIME} (?P<year>\d{{4}})",  # Sun Nov  6 08:49:37 1994
    )
)
_SECONDS = re.compile(r"\d+", re.ASCII)
# More are beyond LONGEST in any case.
_MOST_DIGITS = 9
_MOST_YEARS_AHEAD = 50


def read(value: str | None, date: str | None, now: datetime) -> timedelta | None:
    """How long to wait, within bounds; None if nothing was said, or nothing that makes sense.

    `date` is the same answer's Date header: where it makes sense it is what a date is compared with, so that it
    doesn't matter whose clock is wrong.
    """
    if value is None:
        return None
    wait = _seconds(value.strip())
    if wait is None:
        until = _date(value.strip(), now)
        if until is None:
            return None
        said_at = None if date is None else _date(date.strip(), now)
        wait = until - (now if said_at is None else said_at)
    return min(max(wait, SHORTEST), LONGEST)


def _seconds(text: str) -> timedelta | None:
    if not _SECONDS.fullmatch(text):
        return None
    digits = text.lstrip("0")
    if len(digits) > _MOST_DIGITS:
        return LONGEST
    return timedelta(seconds=int(digits) if digits else 0)


def _date(text: str, now: datetime) -> datetime | None:
    found = next((match for pattern in _DATES if (match := pattern.fullmatch(text))), None)
    if found is None:
        return None
    part = found.groupdict()
    year = _full_year(part["year"], now)
    month = _MONTHS.index(part["month"]) + 1
    leap = part["second"] == "60"  # a second that `datetime` does not have
    second = 59 if leap else int(part["second"])
    try:
        moment = datetime(year, month, int(part["day"]), int(part["hour"]), int(part["minute"]), second, tzinfo=UTC)
    except ValueError:
        return None
    return moment


def _full_year(digits: str, now: datetime) -> int:
    """Of two digits: the year with these that is at most 50 years ahead, as the standard has it."""
    year = int(digits)
    if len(digits) == len("1994"):
        return year
    year += now.year - now.year % 100
    return year - 100 if year > now.year + _MOST_YEARS_AHEAD else year
