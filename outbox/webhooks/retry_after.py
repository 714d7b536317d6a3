"""Parse the Retry-After header of a response: how long the receiver asks us to wait before the next request.

Its value is a number of seconds, or a date in one of the three formats of HTTP. `email.utils` parses these formats, but
it also accepts invalid dates (with another time zone or none, with text after the date, in any case), and it has
another rule for years of two digits. So the format is checked here first.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from email.utils import parsedate

SHORTEST = timedelta(seconds=1)
LONGEST = timedelta(hours=24)

_TIME = r"\d\d:\d\d:\d\d"
_HTTP_DATE = re.compile(
    rf"[A-Z][a-z]{{2}}, \d\d [A-Z][a-z]{{2}} [1-9]\d{{3}} {_TIME} GMT"  # Sun, 06 Nov 1994 08:49:37 GMT
    rf"|[A-Z][a-z]{{5,8}}, \d\d-[A-Z][a-z]{{2}}-(?P<two_digits>\d\d) {_TIME} GMT"  # Sunday, 06-Nov-94 08:49:37 GMT
    rf"|[A-Z][a-z]{{2}} [A-Z][a-z]{{2}} [ \d]\d {_TIME} [1-9]\d{{3}}",  # Sun Nov  6 08:49:37 1994
    re.ASCII,
)
_SECONDS = re.compile(r"\d+", re.ASCII)
# A number with more digits is longer than LONGEST in any case, and `timedelta` could not hold it.
_MOST_DIGITS = 9
_MOST_YEARS_AHEAD = 50


def parse_retry_after(value: str | None, date: str | None, now: datetime) -> timedelta | None:
    """Return how long to wait, from SHORTEST to LONGEST; None if there is no Retry-After, or an invalid one.

    `date` is the Date header of the same response. A date in Retry-After is compared with it, because the receiver's
    clock may be wrong. If there is no valid Date header, it is compared with `now`.
    """
    if value is None:
        return None
    wait = _parse_seconds(value.strip())
    if wait is None:
        until = _parse_date(value.strip(), now)
        if until is None:
            return None
        responded_at = None if date is None else _parse_date(date.strip(), now)
        wait = until - (now if responded_at is None else responded_at)
    return min(max(wait, SHORTEST), LONGEST)


def _parse_seconds(text: str) -> timedelta | None:
    if not _SECONDS.fullmatch(text):
        return None
    digits = text.lstrip("0")
    if len(digits) > _MOST_DIGITS:
        return LONGEST
    return timedelta(seconds=int(digits) if digits else 0)


def _parse_date(text: str, now: datetime) -> datetime | None:
    match = _HTTP_DATE.fullmatch(text)
    parsed = None if match is None else parsedate(text)
    if match is None or parsed is None:
        return None
    year, month, day, hour, minute, second = parsed[:6]
    if match["two_digits"] is not None:
        year = _full_year(int(match["two_digits"]), now)
    leap_second = 60  # `datetime` does not have it
    try:
        return datetime(year, month, day, hour, minute, 59 if second == leap_second else second, tzinfo=UTC)
    except ValueError:
        return None


def _full_year(two_digits: int, now: datetime) -> int:
    """Return the year with these last digits that is at most 50 years ahead, as RFC 9110 says."""
    year = now.year - now.year % 100 + two_digits
    return year - 100 if year > now.year + _MOST_YEARS_AHEAD else year
