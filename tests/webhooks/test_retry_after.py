"""Retry-After in all its valid forms, and in invalid ones."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox.webhooks.retry_after import parse_retry_after

NOW = datetime(2026, 1, 31, 12, 0, 0, tzinfo=UTC)
DAY = 24 * 3600


def seconds(value: str | None, date: str | None = None) -> float | None:
    wait = parse_retry_after(value, date, NOW)
    return None if wait is None else wait.total_seconds()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("120", 120),
        (" 5\t", 5),
        ("007", 7),
        ("0", 1),
        ("1", 1),
        ("2", 2),
        (str(DAY - 1), DAY - 1),
        (str(DAY + 1), DAY),
        ("9" * 9, DAY),
        ("9" * 10, DAY),
        ("9" * 10_000, DAY),
    ],
)
def test_seconds(value: str, expected: float) -> None:
    assert seconds(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("Sat, 31 Jan 2026 12:02:00 GMT", 120),
        ("Saturday, 31-Jan-26 12:02:00 GMT", 120),
        ("Sat Jan 31 12:02:00 2026", 120),
        ("Sun Feb  1 11:00:00 2026", 23 * 3600),
        ("Sat, 31 Jan 2026 12:00:60 GMT", 59),  # a leap second
        ("Sat, 31 Jan 2026 11:00:00 GMT", 1),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 1),
        ("Sunday, 06-Nov-94 08:49:37 GMT", 1),
        ("Friday, 31-Jan-76 12:00:00 GMT", DAY),  # in 50 years
        ("Monday, 31-Jan-77 12:00:00 GMT", 1),  # 49 years ago
        ("Fri, 31 Dec 9999 23:59:59 GMT", DAY),
    ],
)
def test_dates(value: str, expected: float) -> None:
    assert seconds(value) == expected


@pytest.mark.parametrize(
    "date", ["Sat, 31 Jan 2026 18:00:00 GMT", "Saturday, 31-Jan-26 18:00:00 GMT", "Sat Jan 31 18:00:00 2026"]
)
def test_a_date_is_compared_with_the_receivers_own_clock(date: str) -> None:
    assert seconds("Sat, 31 Jan 2026 18:05:00 GMT", date) == 300


def test_an_invalid_date_header_is_ignored() -> None:
    assert seconds("Sat, 31 Jan 2026 12:05:00 GMT", "yesterday") == 300


def test_seconds_are_not_changed_by_a_date_header() -> None:
    assert seconds("60", "Sun, 06 Nov 1994 08:49:37 GMT") == 60


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        " ",
        "-1",
        "+1",
        "1.5",
        "1e3",
        "1_000",
        "١٢٠",
        "5 seconds",
        "soon",
        "120, 240",
        "2026-01-31T12:02:00Z",
        "Sat, 31 Jan 2026 12:02:00",
        "Sat, 31 Jan 2026 12:02:00 CET",
        "Sat, 31 jan 2026 12:02:00 GMT",
        "Sat, 31 Feb 2026 12:02:00 GMT",
        "Sat, 00 Jan 2026 12:02:00 GMT",
        "Sat, 31 Jan 0000 12:02:00 GMT",
        "Sat, 31 Jan 2026 24:02:00 GMT",
        "Sat, 31 Jan 2026 12:60:00 GMT",
        "Sat, 31 Jan 2026 12:02:61 GMT",
        "Sat Jan 31 12:02:00 26",
    ],
)
def test_an_invalid_value_is_ignored(value: str | None) -> None:
    assert seconds(value) is None


@given(st.one_of(st.none(), st.text()), st.one_of(st.none(), st.text()))
def test_whatever_comes_the_wait_is_within_bounds(value: str | None, date: str | None) -> None:
    wait = parse_retry_after(value, date, NOW)
    assert wait is None or timedelta(seconds=1) <= wait <= timedelta(hours=24)


@given(st.datetimes(), st.datetimes())
def test_whatever_date_comes_the_wait_is_within_bounds(until: datetime, said: datetime) -> None:
    form = "%a, %d %b %Y %H:%M:%S GMT"
    wait = parse_retry_after(until.strftime(form), said.strftime(form), NOW)
    assert wait is None or timedelta(seconds=1) <= wait <= timedelta(hours=24)
