"""`outbox list`: list events and jobs, newest first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import click

from outbox.admin import queries
from outbox.admin.durations import format_age
from outbox.admin.job_view import listed_arguments
from outbox.admin.masking import Masking
from outbox.admin.queries import Page
from outbox.cli.event_id import EventId, parse_partial_id, resolve, short_id
from outbox.cli.options import filter_options, json_option, modules_option
from outbox.cli.output import Cell, echo_json, echo_table, event_as_json, is_terminal, to_the_second
from outbox.cli.watch import watch_option
from outbox.current_outbox import current
from outbox.operations.filters import Filter
from outbox.storage.models import DELIVERED, FAILED, JOB, PENDING, SENDING, OutboxEvent
from outbox.storage.status import is_parked

# The colours of what the short list says of an event, by its status.
COLOURS = {FAILED: "red", DELIVERED: "green", PENDING: "yellow", SENDING: "cyan"}


@click.command(name="list", short_help="List events and jobs, newest first.")
@filter_options
@click.option("--wide", is_flag=True, help="Print whole ids and all columns, as in a pipe, on a terminal, too.")
@click.option("--after", type=parse_partial_id, metavar="ID", help="List events that are older than this one.")
@click.option(
    "--limit", default=20, show_default=True, type=click.IntRange(1, 1000), help="List at most this many events."
)
@json_option
@watch_option
@modules_option
def list_(filter: Filter, wide: bool, after: EventId | None, limit: int, as_json: bool) -> None:
    """List events and jobs, newest first: all, or those that match all filters.

    On a terminal the lines fit its width, with shortened ids, which other commands accept. In a pipe nothing is cut.

    With --actor or --kind job, only jobs are listed, with their queues, arguments and due times.
    """
    box = current()
    box.check_schema()
    page = queries.page(box.dialect, filter, after=None if after is None else resolve(box, after), size=limit)
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
        payloads, displayed = (
            queries.payloads_of_jobs(box.dialect, page.events, box.cipher),
            box.registry.redactions.displayed,
        )
        shown = {job.id: displayed(job.event_type, payloads[job.id]) for job in page.events if job.id in payloads}
        _echo_jobs(page.events, shown, Masking(box.settings.masked_keys))
    elif page.events and (wide or not is_terminal()):
        _echo_all(page.events)
    elif page.events:
        with box.dialect.bounded():
            destinations, now = queries.open_destinations(box.dialect, page.events), box.dialect.now()
        _echo_short(page.events, destinations, now)
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


def _echo_short(events: list[OutboxEvent], destinations: Mapping[UUID, list[str]], now: datetime) -> None:
    """Print a line for each event that fits a terminal of 80 columns: with what it waits for, or how it has ended."""
    echo_table(
        ("id", "age", "next", "type", "destination", "error"),
        [
            (
                short_id(event.id),
                format_age(now - event.created_at),
                Cell(next_of(event, now), COLOURS.get(event.status)),
                event.event_type,
                ", ".join(destinations.get(event.id, ())),
                _error(event, destinations.get(event.id, ())),
            )
            for event in events
        ],
        right=[1],
        shrink={3: 14, 4: 11},
    )


def _error(event: OutboxEvent, destinations: Sequence[str]) -> str:
    """Return the error without the name of the destination, which has a column of its own."""
    error = str(event.error_message or "")
    return error.removeprefix(f"{destinations[0]}: ") if destinations else error


def next_of(event: OutboxEvent, now: datetime) -> str:
    """Return what happens next with an event: `due`, `in 5 min`; or its status, if that says it."""
    if event.status in (DELIVERED, FAILED):
        return str(event.status)
    if event.lease_until is not None and event.lease_until > now:
        return "sending"
    if is_parked(event):
        return "waits"
    return "due" if event.next_attempt_at <= now else f"in {format_age(event.next_attempt_at - now)}"


def _about(event: OutboxEvent) -> str:
    if event.kind == JOB:
        return f"queue {event.aggregate_type}"
    return f"{event.aggregate_type}:{event.aggregate_id}"


def _echo_jobs(jobs: list[OutboxEvent], payloads: Mapping[UUID, Any], masking: Masking) -> None:
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
                listed_arguments(job, payloads.get(job.id), masking),
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
