"""`outbox list`: list events and jobs, newest first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import click

from outbox.admin import queries
from outbox.admin.job_view import listed_arguments
from outbox.admin.queries import Page
from outbox.cli.options import filter_options, json_option, modules_option, parse_event_id
from outbox.cli.output import echo_json, echo_table, event_as_json, to_the_second
from outbox.current_outbox import current
from outbox.operations.filters import Filter
from outbox.storage.models import JOB, OutboxEvent


@click.command(name="list", short_help="List events and jobs, newest first.")
@filter_options
@click.option("--after", type=parse_event_id, metavar="ID", help="List events that are older than this one.")
@click.option(
    "--limit", default=20, show_default=True, type=click.IntRange(1, 1000), help="List at most this many events."
)
@json_option
@modules_option
def list_(filter: Filter, after: UUID | None, limit: int, as_json: bool) -> None:
    """List events and jobs, newest first: all, or those that match all filters.

    With --actor or --kind job, only jobs are listed, with their queues, arguments and due times.
    """
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
    noun = "jobs" if filter.only_kind == JOB else "events"
    if not page.events and page.looked_back_to is None:
        click.echo(f"No {noun} match.", err=True)
    elif page.events and filter.only_kind == JOB:
        _echo_jobs(page.events, queries.payloads_of_jobs(box.dialect, page.events))
    elif page.events:
        _echo_all(page.events)
    _echo_rest(page, noun)


def _echo_all(events: list[OutboxEvent]) -> None:
    echo_table(
        ("id", "created (UTC)", "status", "kind", "type", "aggregate", "tries", "error"),
        [
            (
                event.id,
                event.created_at,
                event.status,
                event.kind,
                event.event_type,
                _about(event),
                f"{event.attempts}/{event.max_attempts}",
                event.error_message,
            )
            for event in events
        ],
    )


def _about(event: OutboxEvent) -> str:
    if event.kind == JOB:
        return f"queue {event.aggregate_type}"
    return f"{event.aggregate_type}:{event.aggregate_id}"


def _echo_jobs(jobs: list[OutboxEvent], payloads: Mapping[UUID, Any]) -> None:
    echo_table(
        ("id", "created (UTC)", "due (UTC)", "status", "actor", "queue", "tries", "arguments", "error"),
        [
            (
                job.id,
                job.created_at,
                job.next_attempt_at,
                job.status,
                job.event_type,
                job.aggregate_type,
                f"{job.attempts}/{job.max_attempts}",
                listed_arguments(job, payloads.get(job.id)),
                job.error_message,
            )
            for job in jobs
        ],
    )


def _echo_rest(page: Page, noun: str) -> None:
    """Say how to list the events that are older than those of this page."""
    if page.looked_back_to is not None:
        click.echo(
            f"Searched only the newest {queries.SCAN_LIMITS.window:,} events, back to "
            f"{to_the_second(page.looked_back_to.created_at)}. To search older ones: --after {page.after}",
            err=True,
        )
    elif page.after is not None:
        click.echo(f"For older {noun}: --after {page.after}", err=True)
