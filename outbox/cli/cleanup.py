"""`outbox cleanup`: delete events and inbox messages whose retention is over, now."""

from __future__ import annotations

import click

from outbox.cli.options import modules_option
from outbox.current_outbox import current
from outbox.storage import retention


@click.command(short_help="Delete old events and inbox messages.")
@click.option("--retention-hours", type=click.FloatRange(min=0), help="Use this instead of OUTBOX_RETENTION_HOURS.")
@click.option("-y", "--yes", is_flag=True, help="Don't ask for confirmation.")
@click.option("--dry-run", is_flag=True, help="Only print how many events would be deleted.")
@modules_option
def cleanup(retention_hours: float | None, yes: bool, dry_run: bool) -> None:
    """Delete events that ended longer ago than their retention, and inbox messages older than their retention.

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
    events = box.cleanup_delivered_events(retention_hours)
    messages = box.inbox.cleanup()
    box.delete_old_records()
    click.echo(f"{events['deleted']:,} events and {messages['deleted']:,} inbox messages were deleted.")
