"""`outbox reencrypt`: encrypt the rows of the table with the first of OUTBOX_ENCRYPTION_KEYS, or decrypt them."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator
from typing import Any
from uuid import UUID

import click

from outbox.cli.interruption import Interruption
from outbox.cli.operator import operator
from outbox.cli.options import json_option, modules_option, parse_event_id
from outbox.cli.output import echo_json
from outbox.core import Outbox
from outbox.current_outbox import current
from outbox.encryption.cipher import Cipher
from outbox.operations.reencrypt import Progress, check_cipher
from outbox.operations.reencrypt import reencrypt as run
from outbox.telemetry.audit import Interrupted

# How often the progress is printed.
REPORT_SECONDS = 5.0
# The exit code if rows are left.
ROWS_LEFT = 1


@click.command(short_help="Encrypt the rows of the table with the first key.")
@click.option("--decrypt", is_flag=True, help="Store all rows in plain text instead.")
@click.option("--after", type=parse_event_id, metavar="ID", help="Begin after this row, where an earlier run ended.")
@click.option(
    "--per-second", type=click.FloatRange(min=0, min_open=True), help="Look at no more than this many rows per second."
)
@click.option("-y", "--yes", is_flag=True, help="Don't ask for confirmation.")
@click.option("--dry-run", is_flag=True, help="Only count the rows that would be changed.")
@json_option
@modules_option
def reencrypt(
    *, decrypt: bool, after: UUID | None, per_second: float | None, yes: bool, dry_run: bool, as_json: bool
) -> None:
    """Encrypt all rows of the table with the first of OUTBOX_ENCRYPTION_KEYS.

    These are the rows in plain text, and those that are encrypted with another key. Workers and emitters may run. Rows
    that a worker is delivering are skipped, and reported. The command can be interrupted and run again: it changes only
    what is left. The exit code is 1 if rows are left.
    """
    box = current()
    box.check_schema()
    check_cipher(box.cipher, decrypt=decrypt)
    what = _what(box.cipher, decrypt=decrypt)
    if not (dry_run or yes):
        click.confirm(f"All rows of {box.dialect.tables.event} will be {what}. Continue?", abort=True, err=True)
    with Interruption() as interruption:
        work = run(
            box.dialect,
            box.cipher,
            operator=None if dry_run else operator(),
            decrypt=decrypt,
            dry_run=dry_run,
            after=after,
            per_second=per_second,
            sleep=interruption.requested.wait,
        )
        progress = _show_progress(work, interruption)
    if as_json:
        echo_json(_as_json(progress))
    else:
        _echo(box, progress, what, dry_run=dry_run)
    sys.exit(0 if progress.is_complete else ROWS_LEFT)


def _what(cipher: Cipher | None, *, decrypt: bool) -> str:
    if decrypt or cipher is None:
        return "stored in plain text"
    return f"encrypted with the key {cipher.key_ids[0]}"


def _show_progress(work: Generator[Progress], interruption: Interruption) -> Progress:
    """Run the walk to its end; print the progress on standard error every few seconds. Return the last progress.

    If a signal asks the command to stop, exit after the current batch.
    """
    progress = Progress()
    reported_at = time.monotonic()
    try:
        for progress in work:
            if time.monotonic() - reported_at >= REPORT_SECONDS:
                reported_at = time.monotonic()
                click.echo(f"{_rows(progress.looked_at)} read, {progress.changed:,} changed", err=True)
            if interruption.requested.is_set():
                work.throw(Interrupted(interruption.name))
    except (Interrupted, KeyboardInterrupt):
        resume = "" if progress.last_id is None else f", or go on with --after {progress.last_id}"
        click.echo(
            f"Interrupted after {_rows(progress.looked_at)}, {progress.changed:,} changed. Run the same command again "
            f"for the rest{resume}.",
            err=True,
        )
        sys.exit(interruption.exit_code)
    return progress


def _echo(box: Outbox, progress: Progress, what: str, *, dry_run: bool) -> None:
    verb = "would be" if dry_run else "was" if progress.changed == 1 else "were"
    click.echo(f"{_rows(progress.changed)} of {progress.looked_at:,} {verb} {what}.")
    if progress.skipped:
        click.echo(
            f"{_rows(progress.skipped)} skipped: a worker is delivering them, or another transaction has locked or "
            "changed them. Run the command again.",
            err=True,
        )
    for key_id, count in sorted(progress.missing_keys.items()):
        click.echo(
            f"{_rows(count)} left as they are: encrypted with the key {key_id}, which this process does not have "
            "(OUTBOX_ENCRYPTION_KEYS).",
            err=True,
        )
    if progress.damaged:
        click.echo(
            f"{_rows(progress.damaged)} left as they are: they can't be decrypted, because they were changed after "
            "they were encrypted.",
            err=True,
        )


def _rows(count: int) -> str:
    return f"{count:,} row{'' if count == 1 else 's'}"


def _as_json(progress: Progress) -> dict[str, Any]:
    return {
        "read": progress.looked_at,
        "changed": progress.changed,
        "skipped": progress.skipped,
        "missing_keys": dict(progress.missing_keys),
        "damaged": progress.damaged,
        "last_id": progress.last_id,
    }
