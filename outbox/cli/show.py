"""`outbox show ID`: everything about one event."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from uuid import UUID

import click

from outbox.admin import queries, story
from outbox.admin.overview import database_now
from outbox.cli.options import event_id, json_option, modules_option
from outbox.cli.table import echo_json, echo_table, event_as_json, one_line
from outbox.current_outbox import current
from outbox.storage.models import OutboxEvent

NOT_FOUND = 1


@click.command(short_help="Show everything about one event.")
@click.argument("id", type=event_id)
@json_option
@modules_option
def show(id: UUID, as_json: bool) -> None:
    """Show everything about one event: its state, its destinations, headers and payload, and what happens next."""
    box = current()
    box.check_schema()
    event = queries.find(box, id)
    if event is None:
        click.echo(f"There is no event {id}. It may have been deleted after its retention.", err=True)
        sys.exit(NOT_FOUND)
    with box.dialect.connection():
        next_step = story.next_step(event, database_now(box), box.settings)
        had_by = queries.had_by(box, event)
    if as_json:
        audience = None if event.audience is None else list(had_by)
        echo_json(event_as_json(event) | {"audience": audience, "next": next_step})
        return
    _echo(event, next_step, had_by)


def _echo(event: OutboxEvent, next_step: str, had_by: Sequence[str]) -> None:
    for name, value in event_as_json(event).items():
        if value is not None and name not in ("payload", "headers", "progress", "audience"):
            echo_pair(name, value)
    echo_pair("next", next_step)
    stops = story.stops(event, had_by)
    if stops:
        click.echo()
        echo_table(
            ("destination", "state", "tries", "not before", "error"),
            [(stop.destination, stop.state, stop.attempts, stop.not_before, stop.error) for stop in stops],
        )
    for name in ("headers", "payload"):
        click.echo(f"\n{name}:")
        click.echo(json.dumps(getattr(event, name), indent=2, ensure_ascii=True))


def echo_pair(name: str, value: object) -> None:
    click.echo(f"{name + ':':<17} {one_line(value)}")
