"""Encrypt the rows in plain text, and those that have another key, with the first key; or decrypt all rows.

The command walks along the primary key in small batches, each a transaction of its own. So it can be interrupted and
run again: a row that has the key already is only read. It runs beside emitters and workers: a row that a worker is
delivering, or that another transaction has locked, is skipped and counted.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from outbox.encryption.cipher import Cipher
from outbox.encryption.stored_text import EMPTY, is_encrypted, key_id_of
from outbox.errors import DecryptionError, EncryptionKeyMissing, SettingsError
from outbox.operations.filters import Filter
from outbox.storage.dialect import Dialect
from outbox.storage.ids import as_uuid
from outbox.telemetry import audit
from outbox.telemetry.audit import Operator

# Few rows: a worker does not claim rows that a batch has locked.
BATCH = 100
# On SQLite a batch holds the only write lock; in the pause other transactions can acquire it.
PAUSE_SECONDS = 0.01
REENCRYPT, DECRYPT = "reencrypt", "decrypt"

# The payload and the headers of a row, as stored.
Texts = tuple[str, str]


@dataclass(slots=True)
class Progress:
    """How many rows were read, changed, and left as they are. In a dry run, `changed` counts those that would be."""

    looked_at: int = 0
    changed: int = 0
    # Rows that a worker is delivering, that are locked, or that were changed meanwhile.
    skipped: int = 0
    # Rows that this process can't decrypt, by the id of the key that it lacks, and rows that are damaged.
    missing_keys: Counter[str] = field(default_factory=Counter)
    damaged: int = 0
    # The last row that was read: another run can begin after it.
    last_id: UUID | None = None

    @property
    def is_complete(self) -> bool:
        return not (self.skipped or self.missing_keys or self.damaged)


def reencrypt(
    dialect: Dialect,
    cipher: Cipher | None,
    *,
    operator: Operator | None,
    decrypt: bool = False,
    dry_run: bool = False,
    after: UUID | None = None,
    per_second: float | None = None,
    batch_size: int = BATCH,
    sleep: Callable[[float], object] = time.sleep,
) -> Generator[Progress]:
    """Encrypt or decrypt all rows that exist now, oldest first. After each batch, yield the progress.

    `operator` is written to the audit log, unless it is a dry run. `after` is the row after which to begin.
    `per_second` is the most rows to look at in a second.

    To stop it after a batch, throw `audit.Interrupted` into the generator: the audit log then says what interrupted it.
    """
    check_cipher(cipher, decrypt=decrypt)
    assert cipher is not None  # noqa: S101  (for the type checker)
    progress = Progress(last_id=after)
    if per_second is not None:
        batch_size = max(1, min(batch_size, int(per_second)))
    given = {"after": None if after is None else str(after), "per_second": per_second}
    parameters = {name: value for name, value in given.items() if value is not None}
    action, auditor = DECRYPT if decrypt else REENCRYPT, None if dry_run else operator
    with (
        dialect.connection(),
        audit.record(dialect, auditor, action, Filter().to_json(), parameters) as entry,
    ):
        with dialect.lock_limit():
            newest = dialect.run(dialect.statements.newest_id).fetchone()
        while newest is not None:
            began_at = time.monotonic()
            rows = _next_rows(dialect, progress.last_id, newest[0], batch_size)
            if not rows:
                break
            changes = _changes(cipher, rows, progress, decrypt=decrypt)
            if dry_run:
                progress.changed += len(changes)
            elif changes:
                with dialect.lock_limit(), dialect.atomic():
                    changed = [id for id, old, new in changes if _write(dialect, id, old, new)]
                    entry.add(changed)
                progress.changed += len(changed)
                progress.skipped += len(changes) - len(changed)
            progress.looked_at += len(rows)
            progress.last_id = as_uuid(rows[-1][0])
            yield progress
            if len(rows) < batch_size:
                break
            took = time.monotonic() - began_at
            sleep(PAUSE_SECONDS if per_second is None else max(0.0, len(rows) / per_second - took))


def check_cipher(cipher: Cipher | None, *, decrypt: bool) -> None:
    """Raise SettingsError if this process has no keys, or none that encrypts."""
    if cipher is None:
        raise SettingsError("OUTBOX_ENCRYPTION_KEYS is not set: set it to the keys of the rows.")
    if not decrypt and not cipher.encrypts:
        raise SettingsError(
            "OUTBOX_ENCRYPTION_KEYS begins with `plain`, so this process does not encrypt: leave out `plain`, or use "
            "--decrypt."
        )


def _next_rows(dialect: Dialect, after: UUID | None, newest: object, size: int) -> list[tuple[Any, ...]]:
    begin = dialect.id(UUID(int=0) if after is None else after)
    with dialect.lock_limit():
        rows: list[tuple[Any, ...]] = dialect.run(dialect.statements.stored_texts, (begin, newest, size)).fetchall()
    return rows


def _changes(
    cipher: Cipher, rows: list[tuple[Any, ...]], progress: Progress, *, decrypt: bool
) -> list[tuple[UUID, Texts, Texts]]:
    """Return the rows to change, each with its old and its new texts; count those that can't be decrypted."""
    changes = []
    for row_id, payload, headers in rows:
        id, old = as_uuid(row_id), (payload, headers)
        try:
            new = _new_texts(cipher, id, old, decrypt=decrypt)
        except EncryptionKeyMissing as error:
            progress.missing_keys[error.key_id] += 1
        except DecryptionError:
            progress.damaged += 1
        else:
            if new is not None:
                changes.append((id, old, new))
    return changes


def _new_texts(cipher: Cipher, id: UUID, old: Texts, *, decrypt: bool) -> Texts | None:
    """Return the texts to store, or None if the row needs no change."""
    if decrypt:
        return cipher.decrypt(id, *old) if any(map(is_encrypted, old)) else None
    if all(text == EMPTY or key_id_of(text) == cipher.key_ids[0] for text in old):
        return None
    return cipher.encrypt(id, *cipher.decrypt(id, *old))


def _write(dialect: Dialect, id: UUID, old: Texts, new: Texts) -> bool:
    """Store the new texts unless the row is under a lease, locked, or has other texts by now; return whether it was."""
    return bool(dialect.run(dialect.statements.reencrypt, (*new, dialect.id(id), *old)).rowcount)
