"""Read the recorded destinations, refresh them as a worker does, and make them older."""

from datetime import timedelta

from outbox.core import Outbox
from outbox.destinations.recorded_destinations import RecordedDestination, read_recorded


def recorded(box: Outbox) -> dict[str, RecordedDestination]:
    """Return what the table of recorded destinations holds, by name."""
    with box.dialect.connection():
        return read_recorded(box.dialect)[1]


def refresh(worker: Outbox) -> None:
    """Record the destinations of a running worker again, as it does every minute, and read those of all workers."""
    worker.recorder.record(starting=False)
    worker.recorded_destinations.read()


def let_records_age(box: Outbox, **time: float) -> None:
    """Move the times at which destinations were seen and checked into the past by this much."""
    seconds = timedelta(**time).total_seconds()
    moved = {
        "postgres": f"{{0}} = {{0}} - interval '{seconds} seconds'",
        "sqlite": f"{{0}} = strftime('%Y-%m-%d %H:%M:%f000+00:00', {{0}}, '-{seconds} seconds')",
    }[box.dialect.name]
    columns = ", ".join(moved.format(column) for column in ("seen_at", "checked_at"))
    box.database.execute_sql(f"UPDATE outbox_destination SET {columns}")  # noqa: S608  (the test's own words)
