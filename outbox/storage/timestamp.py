"""Timestamps as the databases store them: always with a timezone, always UTC, always with microseconds.

Both databases get the same text of fixed width. PostgreSQL reads it as `timestamptz`. SQLite stores the text; since
every value has the same width and timezone, comparing the texts compares the times.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

# The range of times that every database can store, and Python can read and convert to any timezone. PostgreSQL also
# has 'infinity' and years before 1 and after 9999, which Python can't read.
EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
LATEST = datetime(9000, 1, 1, tzinfo=UTC)


def to_text(moment: datetime) -> str:
    """Return the time as text: `2026-01-31 12:00:00.000000+00:00`."""
    if moment.tzinfo is not UTC:
        moment = moment.astimezone(UTC)
    return moment.isoformat(sep=" ", timespec="microseconds")


def from_database(value: datetime | str) -> datetime:
    """Return a timestamp that a database returned, in UTC (PostgreSQL returns it in its session's timezone).

    Return EARLIEST for a value that can't be read. Another program has written it, and one such row must not stop the
    delivery of all others.
    """
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
        return moment if moment.tzinfo is UTC else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return EARLIEST


class DatabaseClock:
    """The database's clock, read once and continued with this host's monotonic clock.

    Decisions in Python (when to try again, how long an event has waited) use it, so that a wrong clock of this host has
    no effect.
    """

    __slots__ = ("_read_at", "_reading")

    def __init__(self, reading: datetime) -> None:
        self._reading = reading
        self._read_at = time.monotonic()

    def now(self) -> datetime:
        return self._reading + timedelta(seconds=time.monotonic() - self._read_at)
