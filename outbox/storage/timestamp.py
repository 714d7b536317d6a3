"""Moments in time: always aware, always UTC, always with microseconds.

Both databases are handed the same text of fixed width. PostgreSQL reads it into `timestamptz`; SQLite keeps it as it
is, and since every value has the same width and zone, comparing the texts compares the moments.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

# The range in which every moment can be written, read and moved to any time zone, on every database. PostgreSQL also
# knows 'infinity' and years before 1 and after 9999, which Python can't read.
EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
LATEST = datetime(9000, 1, 1, tzinfo=UTC)


def to_text(moment: datetime) -> str:
    """`2026-01-31 12:00:00.000000+00:00`"""
    return moment.astimezone(UTC).isoformat(sep=" ", timespec="microseconds")


def from_database(value: datetime | str) -> datetime:
    """Return what a database returned, in UTC (PostgreSQL answers in its session's zone).

    What can't be read was not written by this library; it is EARLIEST, so that the row does not stop all others.
    """
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
        return moment if moment.tzinfo is UTC else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return EARLIEST


class DatabaseClock:
    """The database's time, carried on by this host's monotonic clock from one reading.

    Decisions that Python makes (when to try again, how long an event has waited) go by it, so that a host whose
    clock is wrong changes nothing.
    """

    __slots__ = ("_read_at", "_reading")

    def __init__(self, reading: datetime) -> None:
        self._reading = reading
        self._read_at = time.monotonic()

    def now(self) -> datetime:
        return self._reading + timedelta(seconds=time.monotonic() - self._read_at)
