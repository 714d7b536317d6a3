"""SQLite: the file that holds the events."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import peewee

from outbox.admin.doctor.check import Context, Finding, note, ok, problem, warning
from outbox.storage.peewee_database import is_private_to_a_thread, place_of

MOST_TOLD = 5


def file(context: Context) -> Iterator[Finding]:
    database = context.box.database
    if is_private_to_a_thread(database):
        yield note("The events are in memory: they are gone with this process.")
        return
    troubles = [*_journal(context), *_writing(context), *_space(context)]
    yield from troubles
    if not troubles:
        yield ok("The file can be written to by several at once (WAL), and its disk has room.")


def integrity(context: Context) -> Iterator[Finding]:
    """Reads the whole file: only on request."""
    if not context.thorough:
        yield note(
            "Whether the file is intact was not looked at.", "Run `outbox doctor --thorough`: it reads all of it."
        )
        return
    try:
        wrong = [row[0] for row in context.rows(f"PRAGMA quick_check({MOST_TOLD})") if row[0] != "ok"]
    except (peewee.DatabaseError, sqlite3.DatabaseError) as error:  # too damaged to be looked through
        wrong = [str(error)]
    if wrong:
        yield problem(
            f"The file is damaged: {'; '.join(wrong)}.",
            f"Stop all processes, and restore it from a backup; `sqlite3 {context.box.database.database} .recover` "
            "prints what can still be read.",
        )
    else:
        yield ok("The file is intact.")


def _journal(context: Context) -> Iterator[Finding]:
    mode = context.rows("PRAGMA journal_mode")[0][0]
    if mode.lower() != "wal":
        yield problem(
            f"The journal mode is {mode}, not wal: the application and the outbox get 'database is locked' from each "
            "other.",
            'Run `PRAGMA journal_mode = wal` on it once, or open it as `SqliteDatabase(…, pragmas={"journal_mode": '
            '"wal"})`.',
        )


def _writing(context: Context) -> Iterator[Finding]:
    (version,) = context.rows("PRAGMA user_version")[0]
    try:
        context.rows("BEGIN IMMEDIATE")
        try:
            context.rows(f"PRAGMA user_version = {version}")  # a read-only file lets one begin
        finally:
            context.rows("ROLLBACK")
    except peewee.OperationalError as error:
        if "locked" in str(error):
            yield warning(
                "Somebody has been writing to the file for so long that nobody else could.",
                f"`fuser {context.box.database.database}` names the processes that have it open: one of them leaves a "
                "transaction open.",
            )
        else:
            yield problem(
                f"The file can't be written to: {error}.",
                f"Give this user the right to write to it and to its folder: `ls -ld {_folder(context)}`.",
            )


def _space(context: Context) -> Iterator[Finding]:
    free = shutil.disk_usage(_folder(context)).free
    if free < context.thresholds.free_bytes:
        yield problem(
            f"The disk of {place_of(context.box.database)} has only {free // 1024**2:,} MiB left: when it is full, "
            "nothing is emitted and nothing is settled.",
            f"Make room: `df {_folder(context)}`; OUTBOX_RETENTION_HOURS says how long events are kept.",
        )


def _folder(context: Context) -> Path:
    name = str(context.box.database.database)
    return Path(name.removeprefix("file:").partition("?")[0]).absolute().parent
