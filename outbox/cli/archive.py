"""`outbox archive`: write events whose retention is over to compressed files, and delete them."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from outbox.cli.interruption import Interruption
from outbox.cli.operator import operator
from outbox.cli.options import modules_option
from outbox.core import Outbox
from outbox.current_outbox import current
from outbox.operations.archive import SUFFIX, ArchiveError, archive_ended, read_file
from outbox.operations.count import Count
from outbox.storage import retention
from outbox.storage.models import EVENT
from outbox.telemetry import audit
from outbox.telemetry.audit import Interrupted

DAMAGED = 1


@click.command(short_help="Write old events to files, and delete them.")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option("--retention-hours", type=click.FloatRange(min=0), help="Use this instead of OUTBOX_RETENTION_HOURS.")
@click.option("-y", "--yes", is_flag=True, help="Don't ask for confirmation.")
@click.option("--dry-run", is_flag=True, help="Only print how many events would be archived.")
@click.option("--verify", is_flag=True, help="Read all files of DIRECTORY instead, and say which are damaged.")
@modules_option
def archive(directory: Path, retention_hours: float | None, yes: bool, dry_run: bool, verify: bool) -> None:
    """Write events that ended longer ago than their retention to files in DIRECTORY, and delete them.

    Each file has up to 2,000 events, a JSON object on each line, compressed with gzip: zcat reads it. It is read back
    before its events are deleted. You can interrupt the command and run it again. What is encrypted stays encrypted.

    With OUTBOX_ARCHIVE_DIRECTORY, the clean-up of the workers does the same before it deletes events.
    """
    if verify:
        _verify(directory)
        return
    box = current()
    box.check_schema()
    hours = box.settings.retention_hours if retention_hours is None else retention_hours
    old = retention.count_ended(box.dialect, hours)
    ended = f"{Count.up_to(retention.REMAINING_CAP - 1, old).of(EVENT)} ended more than {hours:g} hours ago"
    if dry_run:
        click.echo(f"{ended}.")
        return
    if old and not yes:
        click.confirm(f"{ended}, and will be archived in {directory} and deleted. Continue?", abort=True, err=True)
    click.echo(f"{Count(_archive(box, directory, hours)).of(EVENT)} archived in {directory}, and deleted.")


def _archive(box: Outbox, directory: Path, hours: float) -> int:
    given = {"retention_hours": hours, "directory": str(directory)}
    with Interruption() as interruption:
        try:
            with box.dialect.connection(), audit.record(box.dialect, operator(), "archive", {}, given) as entry:
                stopping = interruption.requested
                archive_ended(box.dialect, directory, hours, stopping=stopping, on_deleted=entry.add)
                _stop_if_asked(interruption, entry.affected)
        except (Interrupted, KeyboardInterrupt):
            sys.exit(interruption.exit_code)
    return entry.affected


def _stop_if_asked(interruption: Interruption, affected: int) -> None:
    if interruption.requested.is_set():
        click.echo(f"Interrupted after {Count(affected).of(EVENT)}. Run the same command again.", err=True)
        raise Interrupted(interruption.name)


def _verify(directory: Path) -> None:
    files, events, damaged = sorted(directory.glob(f"*{SUFFIX}")), 0, 0
    for path in files:
        try:
            events += sum(1 for _ in read_file(path))
        except ArchiveError as error:
            damaged += 1
            click.echo(str(error), err=True)
    click.echo(f"{len(files):,} files, {Count(events).of(EVENT)}, {damaged:,} damaged.")
    if damaged:
        sys.exit(DAMAGED)
