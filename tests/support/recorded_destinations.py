"""The recorded destinations as tests see them, and time as they move it."""

from datetime import timedelta

from outbox.core import Outbox
from outbox.destinations.recorded_destinations import RecordedDestination, read_recorded


def recorded(box: Outbox) -> dict[str, RecordedDestination]:
    with box.dialect.connection():
        return read_recorded(box.dialect)[1]


def let_records_age(box: Outbox, **time: float) -> None:
    """As if that much time had passed since the destinations were seen and checked."""
    seconds = timedelta(**time).total_seconds()
    moved = {
        "postgres": f"{{0}} = {{0}} - interval '{seconds} seconds'",
        "sqlite": f"{{0}} = strftime('%Y-%m-%d %H:%M:%f000+00:00', {{0}}, '-{seconds} seconds')",
    }[box.dialect.name]
    columns = ", ".join(moved.format(column) for column in ("seen_at", "checked_at"))
    box.database.execute_sql(f"UPDATE outbox_destination SET {columns}")  # noqa: S608  (the test's own words)
