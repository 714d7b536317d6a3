"""`outbox cleanup`: delete what is old, now."""

from __future__ import annotations

import click

from outbox.cli.options import modules_option
from outbox.current_outbox import current
from outbox.storage import retention


@click.command(short_help="Delete what ended long ago.")
@click.option("--retention-hours", type=click.FloatRange(min=0), help="Instead of OUTBOX_RETENTION_HOURS.")
@click.option("-y", "--yes", is_flag=True, help="Don't ask.")
@click.option("--dry-run", is_flag=True, help="Only say how many it would be.")
@modules_option
def cleanup(retention_hours: float | None, yes: bool, dry_run: bool) -> None:
    """Delete events that ended longer ago than the retention, and what the inbox need not remember any longer.

    The scheduler does that by itself.
    """
    box = current()
    box.check_schema()
    hours = box.settings.retention_hours if retention_hours is None else retention_hours
    old = retention.count_ended(box.dialect, hours)
    if dry_run or (old and not yes):
        shown = f"{old:,}{'+' if old >= retention.REMAINING_CAP else ''}"
        told = f"{shown} events ended more than {hours:g} hours ago"
        if dry_run:
            click.echo(f"{told}.")
            return
        click.confirm(f"{told}, and will be deleted. Go on?", abort=True, err=True)
    events = box.cleanup_delivered_events(retention_hours)
    messages = box.inbox.cleanup()
    box.delete_old_records()
    click.echo(f"{events['deleted']:,} events and {messages['deleted']:,} messages of the inbox were deleted.")
