"""Write the events whose retention is over to compressed files, and delete them from the table.

Each batch is one transaction: its rows are locked, written to a file of its own, read back and compared, and only then
deleted. Whatever happens in between, no event is deleted that is not in a file. After a crash the events of one batch
may be in a file and in the table; the next run archives them again, perhaps in another file, with the same ids.

A file has one JSON object a line (NDJSON), compressed with gzip, with all columns as they are stored: encrypted
payloads stay encrypted, and erased ones stay erased.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from outbox.delivery.audience import names_of
from outbox.errors import OutboxError, SettingsError
from outbox.storage import retention, timestamp
from outbox.storage.dialect import Dialect
from outbox.storage.ids import as_uuid
from outbox.storage.retention import FIRST, PAUSE_SECONDS, REMAINING_CAP, count_remaining, id_limit
from outbox.storage.sql.archive import ARCHIVED

BATCH = 2_000
SUFFIX = ".ndjson.gz"
_JSON = ("payload", "headers", "progress")
_IDS = ("id", "lease_id")
_TIMES = ("next_attempt_at", "lease_until", "created_at", "updated_at", "delivered_at", "erased_at")


class ArchiveError(OutboxError):
    """A file of the archive could not be written, or is damaged. No event was deleted for it."""


def delete_ended(dialect: Dialect, directory: str | None, hours: float, **options: Any) -> dict[str, int]:
    """Delete the events that ended more than `hours` ago; if a directory is given, archive them there first."""
    if directory is None:
        return retention.cleanup_delivered_events(dialect, hours, **options)
    return archive_ended(dialect, Path(directory), hours, **options)


def archive_ended(
    dialect: Dialect,
    directory: Path,
    hours: float,
    *,
    stopping: threading.Event,
    seconds: float | None = None,
    batch_size: int = BATCH,
    on_deleted: Callable[[Sequence[UUID]], None] | None = None,
) -> dict[str, int]:
    """Archive and delete the events that ended more than `hours` ago; return what `cleanup_delivered_events` returns.

    It stops after `seconds`, if given, and when the process is stopping. `on_deleted` is called with the ids of each
    batch, in the transaction that deletes it.
    """
    if hours < 0:
        raise SettingsError(f"retention_hours must not be negative, not {hours}.")
    ends_at = None if seconds is None else time.monotonic() + seconds
    deleted, remaining, after = 0, 0, FIRST
    with dialect.connection():
        age, below = dialect.seconds(hours * 3600), id_limit(dialect, hours)
        while True:
            with dialect.lock_limit(), dialect.atomic():
                ids = _archive_batch(dialect, directory, (age, dialect.id(after), below, batch_size))
                if on_deleted is not None and ids:
                    on_deleted(ids)
            if not ids:
                break
            deleted += len(ids)
            after = max(ids)
            if stopping.is_set() or (ends_at is not None and time.monotonic() >= ends_at):
                remaining = count_remaining(dialect, age, below, REMAINING_CAP)
                break
            time.sleep(PAUSE_SECONDS)
    return {"deleted": deleted, "remaining": remaining}


def _archive_batch(dialect: Dialect, directory: Path, parameters: tuple[object, ...]) -> list[UUID]:
    """Lock, write, compare and delete one batch; return its ids."""
    rows = [dict(zip(ARCHIVED, row, strict=True)) for row in dialect.run(dialect.statements.archive, parameters)]
    if not rows:
        return []
    names = names_of(dialect, {row["audience"] for row in rows if row["audience"] is not None})
    write_file(directory, [_line(row, names) for row in rows], name=_name(rows))
    ids = [as_uuid(row["id"]) for row in rows]
    found = dialect.run(dialect.statements.delete_by_hand, (dialect.ids(ids),)).fetchall()
    if len(found) != len(ids):
        raise ArchiveError("Some of the archived events changed meanwhile. Nothing was deleted: run the command again.")
    return ids


def _name(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the name of a file: when its first event was emitted, and the ids of its first and its last."""
    created_at = timestamp.from_database(rows[0]["created_at"]).astimezone(UTC)
    first, last = as_uuid(rows[0]["id"]), as_uuid(rows[-1]["id"])
    return f"outbox-{created_at:%Y%m%dT%H%M%SZ}-{first.hex}-{last.hex[-12:]}{SUFFIX}"


def _line(row: Mapping[str, Any], names: Mapping[int, Sequence[str]]) -> bytes:
    """Return a row as one line of JSON."""
    values = ", ".join(f"{json.dumps(name)}: {_value(name, row[name])}" for name in ARCHIVED)
    delivered_to = json.dumps(list(names.get(row["audience"], ())), ensure_ascii=False)
    return f'{{{values}, "delivered_to": {delivered_to}}}\n'.encode()


def _value(name: str, value: Any) -> str:
    if value is None:
        return "null"
    if name in _JSON:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        # The exact text, unless another program has stored one of several lines.
        return text if "\n" not in text and "\r" not in text else json.dumps(json.loads(text), ensure_ascii=False)
    if name in _TIMES:
        return json.dumps(_time(value))
    if name in _IDS:
        return json.dumps(str(as_uuid(value)))
    return json.dumps(value if isinstance(value, int) else str(value), ensure_ascii=False)


def _time(value: Any) -> str:
    moment: datetime = timestamp.from_database(value)
    return moment.astimezone(UTC).isoformat()


def write_file(directory: Path, lines: Iterable[bytes], *, name: str) -> Path:
    """Write a compressed file, and read it back. It gets its name only after its content is on the disk."""
    content = b"".join(lines)
    path, unfinished = directory / name, directory / f".{name}.{os.getpid()}"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(unfinished, "wb", opener=_private) as file:
            file.write(gzip.compress(content, mtime=0))
            file.flush()
            os.fsync(file.fileno())
        if _digest(gzip.decompress(unfinished.read_bytes())) != _digest(content):
            raise ArchiveError(f"{unfinished} is not what was written: the disk is faulty. Nothing was deleted.")
        unfinished.replace(path)
        _sync(directory)
    except (OSError, EOFError) as error:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise ArchiveError(f"Could not write the archive {path}: {error}. Its events were not deleted.") from error
    return path


def read_file(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a file; raise ArchiveError if it is damaged."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for line in file:
                yield json.loads(line)
    except (OSError, EOFError, ValueError) as error:
        raise ArchiveError(f"{path} is damaged: {error}") from error


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def _sync(directory: Path) -> None:
    """Make sure that the name of a new file is on the disk, too."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
