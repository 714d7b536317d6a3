"""`outbox list`: list events, newest first."""

from __future__ import annotations

from uuid import UUID

import click

from outbox.admin import queries
from outbox.admin.queries import Page
from outbox.cli.options import filter_options, json_option, modules_option, parse_event_id
from outbox.cli.output import echo_json, echo_table, event_as_json, to_the_second
from outbox.current_outbox import current
from outbox.operations.filters import Filter


@click.command(name="list", short_help="List events, newest first.")
@filter_options
@click.option("--after", type=parse_event_id, metavar="ID", help="List events that are older than this one.")
@click.option(
    "--limit", default=20, show_default=True, type=click.IntRange(1, 1000), help="List at most this many events."
)
@json_option
@modules_option
def list_(filter: Filter, after: UUID | None, limit: int, as_json: bool) -> None:
    """List events, newest first: all, or those that match all filters."""
    box = current()
    box.check_schema()
    page = queries.page(box.dialect, filter, after=after, size=limit)
    if as_json:
        fields = [field.name for field in queries.LISTED]
        echo_json(
            {
                "events": [event_as_json(event, *fields) for event in page.events],
                "after": page.after,
                "looked_back_to": None if page.looked_back_to is None else page.looked_back_to.created_at,
            }
        )
        return
    _echo(page)


def _echo(page: Page) -> None:
    if page.events:
        echo_table(
            ("id", "created (UTC)", "status", "type", "aggregate", "tries", "error"),
            [
                (
                    event.id,
                    event.created_at,
                    event.status,
                    event.event_type,
                    f"{event.aggregate_type}:{event.aggregate_id}",
                    f"{event.attempts}/{event.max_attempts}",
                    event.error_message,
                )
                for event in page.events
            ],
        )
    elif page.looked_back_to is None:
        click.echo("No events match.", err=True)
    if page.looked_back_to is not None:
        click.echo(
            f"Searched only the newest {queries.SCAN_LIMITS.window:,} events, back to "
            f"{to_the_second(page.looked_back_to.created_at)}. To search older ones: --after {page.after}",
            err=True,
        )
    elif page.after is not None:
        click.echo(f"For older events: --after {page.after}", err=True)
