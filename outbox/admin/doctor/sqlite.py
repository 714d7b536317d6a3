"""Check the file of an SQLite database."""

from __future__ import annotations

import shlex
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import peewee

from outbox.admin.doctor.check import Context, Finding, note, ok, problem, warning
from outbox.storage.peewee_database import is_private_to_a_thread, place_of

MOST_REPORTED = 5
# The files that SQLite keeps beside a database in WAL mode.
SUFFIXES = ("-wal", "-shm")


def file(context: Context) -> Iterator[Finding]:
    """Check the journal mode, that the file can be written to, who can read it, and that its disk has room."""
    database = context.box.database
    if is_private_to_a_thread(database):
        yield note("The database is in memory: its events are lost when this process ends.")
        return
    findings = [*_journal(context), *_writing(context), *_readers(context), *_space(context)]
    yield from findings
    if not findings:
        yield ok("The file is in WAL mode, can be written to, and is not readable by all users; its disk has room.")


def integrity(context: Context) -> Iterator[Finding]:
    """Check that the file is intact, but only with --thorough, because that reads the whole file."""
    if not context.thorough:
        yield note(
            "This run did not check whether the file is intact.",
            "Run `outbox doctor --thorough`: it reads the whole file.",
        )
        return
    try:
        errors = [row[0] for row in context.rows(f"PRAGMA quick_check({MOST_REPORTED})") if row[0] != "ok"]
    except (peewee.DatabaseError, sqlite3.DatabaseError) as error:  # too damaged to be checked
        errors = [str(error)]
    if errors:
        yield problem(
            f"The file is damaged: {'; '.join(errors)}.",
            "Stop all processes, and restore the file from a backup; "
            f"`sqlite3 {context.box.database.database} .recover` "
            "prints what can still be read.",
        )
    else:
        yield ok("The file is intact.")


def _journal(context: Context) -> Iterator[Finding]:
    mode = context.rows("PRAGMA journal_mode")[0][0]
    if mode.lower() != "wal":
        yield problem(
            f"The journal mode is {mode}, not wal: the application and the outbox block each other, with the "
            "error 'database is locked'.",
            'Run `PRAGMA journal_mode = wal` once, or open it as `SqliteDatabase(…, pragmas={"journal_mode": "wal"})`.',
        )


def _writing(context: Context) -> Iterator[Finding]:
    (version,) = context.rows("PRAGMA user_version")[0]
    try:
        context.rows("BEGIN IMMEDIATE")
        try:
            context.rows(f"PRAGMA user_version = {version}")  # BEGIN alone succeeds on a read-only file
        finally:
            context.rows("ROLLBACK")
    except peewee.OperationalError as error:
        if "locked" in str(error):
            yield warning(
                "Another process held the write lock of the file for so long that this check could not write.",
                f"`fuser {context.box.database.database}` lists the processes that have the file open: one of them "
                "leaves a transaction open.",
            )
        else:
            yield problem(
                f"The file can't be written to: {error}.",
                f"Give this user write permission for it and for its folder: `ls -ld {_folder(context)}`.",
            )


def _readers(context: Context) -> Iterator[Finding]:
    """Warn if every user of the machine can read the file, or one of the two files that SQLite keeps beside it."""
    path = _path(context)
    open_to_all = [each for each in (path, *(Path(f"{path}{suffix}") for suffix in SUFFIXES)) if _all_can_read(each)]
    if open_to_all:
        names = ", ".join(map(str, open_to_all))
        yield warning(
            f"Every user of this machine can read the events: the mode of {names} allows it.",
            f"Run `chmod o= {shlex.join(map(str, open_to_all))}`. A file that the outbox creates has the mode 0600; "
            "another program has created this one, or has changed its mode.",
        )


def _all_can_read(path: Path) -> bool:
    """Return whether users other than the owner and the group can read the file, and enter all folders above it."""
    try:
        folders = all(folder.stat().st_mode & stat.S_IXOTH for folder in path.resolve().parents)
        return folders and bool(path.stat().st_mode & stat.S_IROTH)
    except OSError:  # there is no such file, or a folder that even this process may not look into
        return False


def _space(context: Context) -> Iterator[Finding]:
    free = shutil.disk_usage(_folder(context)).free
    if free < context.thresholds.free_bytes:
        yield problem(
            f"The disk of {place_of(context.box.database)} has only {free // 1024**2:,} MiB left: when it is full, "
            "no event can be emitted, and no outcome of a delivery can be stored.",
            f"Make room: `df {_folder(context)}`; OUTBOX_RETENTION_HOURS says how long events are kept.",
        )


def _folder(context: Context) -> Path:
    return _path(context).parent


def _path(context: Context) -> Path:
    name = str(context.box.database.database)
    return Path(name.removeprefix("file:").partition("?")[0]).absolute()
