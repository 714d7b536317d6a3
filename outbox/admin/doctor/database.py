"""Check that the database can be reached, is new enough, and has the same time as this host."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import peewee

from outbox.admin.doctor.check import Context, Finding, ok, problem, warning
from outbox.errors import SchemaError, describe
from outbox.storage.peewee_database import is_missing_file, place_of
from outbox.text import one_line


def reachable(context: Context) -> Iterator[Finding]:
    """Check that the database can be reached, that its encoding is UTF8, and that its version is supported."""
    box = context.box
    place = place_of(box.database)
    if is_missing_file(box.database):  # connecting would create the file
        yield problem(
            f"The file of {place} does not exist.",
            "Set OUTBOX_DATABASE_URL to the file that the application uses, or run `outbox init` to create it.",
        )
        return
    try:
        with box.dialect.connection():
            box.dialect.check_encoding()
            version = _postgres_version(context) if context.on_postgres else sqlite3.sqlite_version_info
    except peewee.PeeweeException as error:
        yield problem(
            f"{place} can't be used: {one_line(describe(error))}",
            "Start the database, or set OUTBOX_DATABASE_URL to its address.",
        )
        return
    except SchemaError as error:
        what, _, advice = str(error).partition(". ")
        yield problem(f"{what}.", advice)
        return
    number = ".".join(map(str, version))
    if context.on_postgres and version < context.thresholds.oldest_postgres:
        oldest = ".".join(map(str, context.thresholds.oldest_postgres))
        yield problem(
            f"{place} is PostgreSQL {number}, but the outbox needs {oldest} or later.",
            f"Upgrade it with `pg_upgrade`, or set OUTBOX_DATABASE_URL to a server of version {oldest} or later.",
        )
    else:
        yield ok(f"{place} can be reached: {'PostgreSQL' if context.on_postgres else 'SQLite'} {number}.")


def clock(context: Context, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> Iterator[Finding]:
    """Check that the clocks of the database and of this host show the same time."""
    before = now()
    database_time = context.box.dialect.now()
    after = now()
    # The database read its clock between `before` and `after`. Only a time outside that interval is a difference.
    ahead = max(0.0, (database_time - after).total_seconds())
    behind = max(0.0, (before - database_time).total_seconds())
    difference = max(ahead, behind)
    if difference <= context.thresholds.clock_seconds:
        yield ok("The database's clock and this host's show the same time.")
        return
    yield warning(
        f"The database's clock is {difference:.0f} s {'ahead of' if ahead else 'behind'} this host's. "
        "Deliveries, retries and leases use the database's clock, and are not affected. The ids of events that this "
        "host emits use its own clock, so the order of lists, and filters by time, are wrong by that difference.",
        "Use NTP on both hosts; `timedatectl` shows whether it is active.",
    )


def _postgres_version(context: Context) -> tuple[int, ...]:
    number = int(context.rows("SELECT current_setting('server_version_num')")[0][0])
    return number // 10_000, number % 10_000
