"""Whether the database can be reached, is new enough, and has the time that we have."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime

import peewee

from outbox.admin.doctor.check import Context, Finding, ok, problem, warning
from outbox.admin.overview import database_now
from outbox.errors import SchemaError, describe
from outbox.storage.peewee_database import is_missing_file, place_of
from outbox.text import one_line


def reached(context: Context) -> Iterator[Finding]:
    box = context.box
    place = place_of(box.database)
    if is_missing_file(box.database):  # looking would make it
        yield problem(
            f"There is no file for {place}.",
            "Set OUTBOX_DATABASE_URL to the one that the application uses, or run `outbox init` to make it.",
        )
        return
    try:
        with box.dialect.connection():
            box.dialect.check_encoding()
            version = _postgres_version(context) if context.on_postgres else sqlite3.sqlite_version_info
    except peewee.PeeweeException as error:
        yield problem(
            f"{place} can't be used: {one_line(describe(error))}",
            "Start the database, or set OUTBOX_DATABASE_URL to where it is.",
        )
        return
    except SchemaError as error:
        what, _, advice = str(error).partition(". ")
        yield problem(f"{what}.", advice)
        return
    words = ".".join(map(str, version))
    if context.on_postgres and version < context.thresholds.oldest_postgres:
        oldest = ".".join(map(str, context.thresholds.oldest_postgres))
        yield problem(
            f"{place} is PostgreSQL {words}, and the outbox needs {oldest} or later.",
            f"Upgrade it with `pg_upgrade`, or set OUTBOX_DATABASE_URL to a server of version {oldest} or later.",
        )
    else:
        yield ok(f"{place} answers: {'PostgreSQL' if context.on_postgres else 'SQLite'} {words}.")


def clock(context: Context) -> Iterator[Finding]:
    before = datetime.now(UTC)
    theirs = database_now(context.box.dialect)
    after = datetime.now(UTC)
    # Somewhere between the two of ours it was asked; the difference is what no such moment explains.
    ahead = max(0.0, (theirs - after).total_seconds())
    behind = max(0.0, (before - theirs).total_seconds())
    difference = max(ahead, behind)
    if difference <= context.thresholds.clock_seconds:
        yield ok("The database's clock agrees with this host's.")
        return
    yield warning(
        f"The database's clock is {difference:.0f} s {'ahead of' if ahead else 'behind'} this host's. Deliveries, "
        "retries and leases go by the database's and are right; the ids of events emitted here, the order they are "
        "listed in and filters by time are off by as much.",
        "Let both hosts set their clocks by NTP; `timedatectl` shows whether they do.",
    )


def _postgres_version(context: Context) -> tuple[int, ...]:
    number = int(context.rows("SELECT current_setting('server_version_num')")[0][0])
    return number // 10_000, number % 10_000
