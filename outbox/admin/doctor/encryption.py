"""Check that this process can decrypt the rows of the table, and that no row is in plain text if it encrypts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from outbox.admin.doctor.check import Context, Finding, note, ok, problem, warning
from outbox.admin.doctor.processes import name_of
from outbox.encryption.keys import ID_LENGTH
from outbox.encryption.stored_text import START, START_OF_VERSION

# How many of the newest rows, and of the unfinished ones, the check looks at.
LOOKED_AT = 10_000
MOST_REPORTED = 10
PLAIN = "plain"


class RowsByKey(NamedTuple):
    """How many rows are encrypted with each key, among those that the check looked at."""

    by_key: dict[str, int]
    plain: int


def encrypted_rows(context: Context) -> Iterator[Finding]:
    """Compare the keys of this process with those of the unfinished rows and of the newest rows."""
    cipher, statements = context.box.cipher, context.box.dialect.statements
    unfinished, newest = _count(context, statements.keys_of_unfinished), _count(context, statements.keys_of_newest)
    key_ids = () if cipher is None else cipher.key_ids
    findings = [
        *_missing_keys(unfinished, newest, key_ids),
        *_workers_without_keys(context, unfinished),
        *_old_keys(unfinished, newest, key_ids),
    ]
    if cipher is not None and cipher.encrypts:
        findings += _plain_rows(unfinished, newest)
    yield from findings
    if findings:
        return
    if cipher is None:
        yield ok("Payloads and headers are stored in plain text: OUTBOX_ENCRYPTION_KEYS is not set.")
    elif cipher.encrypts:
        yield ok(f"Payloads and headers are encrypted with the key {key_ids[0]}.")
    else:
        yield ok("New rows are stored in plain text: OUTBOX_ENCRYPTION_KEYS begins with `plain`.")


def _count(context: Context, statement: str) -> RowsByKey:
    key_id_at = (len(START_OF_VERSION) + 1, ID_LENGTH)
    column = (f"{START}%", *key_id_at)
    found = {key_id: int(count) for key_id, count in context.rows(statement, *column, *column, LOOKED_AT)}
    found.pop(None, None)  # neither payload nor headers
    plain = found.pop(PLAIN, 0)
    return RowsByKey(found, plain)


def _missing_keys(unfinished: RowsByKey, newest: RowsByKey, key_ids: tuple[str, ...]) -> Iterator[Finding]:
    for key_id in sorted(unfinished.by_key.keys() - set(key_ids)):
        yield problem(
            f"{_at_least(unfinished.by_key[key_id])} unfinished rows are encrypted with the key {key_id}, which this "
            "process does not have: a worker without it can't deliver them.",
            "Set OUTBOX_ENCRYPTION_KEYS to the same keys in all workers and here, this one among them. If the key is "
            "lost, mark the events as failed with `outbox fail`.",
        )
    for key_id in sorted(newest.by_key.keys() - unfinished.by_key.keys() - set(key_ids)):
        yield warning(
            f"{_at_least(newest.by_key[key_id])} rows that have ended are encrypted with the key {key_id}, which this "
            "process does not have: they can't be shown here, and not be retried or replayed without it.",
            "Add the key to OUTBOX_ENCRYPTION_KEYS, or wait until the rows are deleted after OUTBOX_RETENTION_HOURS.",
        )


def _workers_without_keys(context: Context, unfinished: RowsByKey) -> Iterator[Finding]:
    """Find running workers that can't decrypt unfinished rows, or that don't know that rows may be encrypted."""
    for process in context.overview.workers[:MOST_REPORTED]:
        missing = sorted(unfinished.by_key.keys() - set(process.details.get("encryption_keys", ())))
        if missing and "encryption_keys" not in process.details:
            yield problem(
                f"{name_of(process)} runs a version of the library that does not know encrypted rows, and such rows "
                "wait: it delivers those that it claims as they are stored.",
                f"Stop {name_of(process)}, install this version there, and start it again.",
            )
        elif missing:
            yield problem(
                f"{name_of(process)} does not have the key {', '.join(missing)}, with which unfinished rows are "
                "encrypted: those that it claims wait for another worker.",
                f"Set OUTBOX_ENCRYPTION_KEYS of {name_of(process)} to the keys of the other workers, and restart it.",
            )


def _old_keys(unfinished: RowsByKey, newest: RowsByKey, key_ids: tuple[str, ...]) -> Iterator[Finding]:
    for key_id in key_ids[1:]:
        count = max(unfinished.by_key.get(key_id, 0), newest.by_key.get(key_id, 0))
        if count:
            yield note(
                f"{_at_least(count)} rows are encrypted with the older key {key_id}.",
                "Run `outbox reencrypt` before you remove it from OUTBOX_ENCRYPTION_KEYS.",
            )


def _plain_rows(unfinished: RowsByKey, newest: RowsByKey) -> Iterator[Finding]:
    count = max(unfinished.plain, newest.plain)
    if count:
        yield warning(
            f"{_at_least(count)} rows are in plain text, although OUTBOX_ENCRYPTION_KEYS is set.",
            "Run `outbox reencrypt`. If new rows are among them, a process that emits lacks the setting: set "
            "OUTBOX_ENCRYPTION_KEYS in all processes.",
        )


def _at_least(count: int) -> str:
    """Return the number, which is a part of the rows if the check has not looked at all of them."""
    return f"{count:,}" if count < LOOKED_AT else f"{LOOKED_AT:,} or more"
