"""`outbox cleanup`: delete events and inbox messages whose retention is over, now."""

from __future__ import annotations

import sys

import click

from outbox.cli.interruption import Interruption
from outbox.cli.operator import operator
from outbox.cli.options import modules_option
from outbox.core import Outbox
from outbox.current_outbox import current
from outbox.operations.archive import delete_ended
from outbox.storage import retention
from outbox.telemetry import audit
from outbox.telemetry.audit import Interrupted


@click.command(short_help="Delete old events and inbox messages.")
@click.option("--retention-hours", type=click.FloatRange(min=0), help="Use this instead of OUTBOX_RETENTION_HOURS.")
@click.option("-y", "--yes", is_flag=True, help="Don't ask for confirmation.")
@click.option("--dry-run", is_flag=True, help="Only print how many events would be deleted.")
@modules_option
def cleanup(retention_hours: float | None, yes: bool, dry_run: bool) -> None:
    """Delete events that ended longer ago than their retention, and inbox messages older than their retention.

    With OUTBOX_ARCHIVE_DIRECTORY, events are archived first, as outbox archive does.

    The scheduler also does this, every OUTBOX_CLEANUP_MINUTES.
    """
    box = current()
    box.check_schema()
    hours = box.settings.retention_hours if retention_hours is None else retention_hours
    old = retention.count_ended(box.dialect, hours)
    if dry_run or (old and not yes):
        shown = f"{old:,}{'+' if old >= retention.REMAINING_CAP else ''}"
        ended = f"{shown} events ended more than {hours:g} hours ago"
        if dry_run:
            click.echo(f"{ended}.")
            return
        click.confirm(f"{ended}, and will be deleted. Continue?", abort=True, err=True)
    events, messages = _delete(box, hours)
    click.echo(f"{events:,} events and {messages:,} inbox messages were deleted.")


def _delete(box: Outbox, hours: float) -> tuple[int, int]:
    """Delete them, and write the audit log; return how many events and how many inbox messages were deleted."""
    with Interruption() as interruption:
        try:
            events = _delete_events(box, hours, interruption)
        except (Interrupted, KeyboardInterrupt):
            sys.exit(interruption.exit_code)
    messages = box.inbox.cleanup()
    box.delete_old_records()
    return events, messages["deleted"]


def _delete_events(box: Outbox, hours: float, interruption: Interruption) -> int:
    given = {"retention_hours": hours}
    with box.dialect.connection(), audit.record(box.dialect, operator(), "cleanup", {}, given) as entry:
        stopping = interruption.requested
        directory = box.settings.archive_directory
        delete_ended(box.dialect, directory, hours, stopping=stopping, on_deleted=entry.add)
        if stopping.is_set():
            click.echo(f"Interrupted after {entry.affected:,} events. Run the same command again.", err=True)
            raise Interrupted(interruption.name)
    return entry.affected
