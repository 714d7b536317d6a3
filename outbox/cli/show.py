"""`outbox show ID`: show everything about one event."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from uuid import UUID

import click

from outbox.admin import event_state, queries
from outbox.cli.options import json_option, modules_option, parse_event_id
from outbox.cli.output import echo_json, echo_table, event_as_json, one_line
from outbox.current_outbox import current
from outbox.storage.models import OutboxEvent

NOT_FOUND = 1


@click.command(short_help="Show everything about one event.")
@click.argument("id", type=parse_event_id)
@json_option
@modules_option
def show(id: UUID, as_json: bool) -> None:
    """Show everything about one event: its state at each destination, what happens next, headers and payload."""
    box = current()
    box.check_schema()
    event = queries.find(box.dialect, id)
    if event is None:
        click.echo(f"There is no event {id}. It may have been deleted after its retention.", err=True)
        sys.exit(NOT_FOUND)
    with box.dialect.connection():
        next_step = event_state.next_step(event, box.dialect.now(), box.settings)
        delivered_to = queries.delivered_to(box.dialect, event)
    if as_json:
        audience = None if event.audience is None else list(delivered_to)
        echo_json(event_as_json(event) | {"audience": audience, "next": next_step})
        return
    _echo(event, next_step, delivered_to)


def _echo(event: OutboxEvent, next_step: str, delivered_to: Sequence[str]) -> None:
    for name, value in event_as_json(event).items():
        if value is not None and name not in ("payload", "headers", "progress", "audience"):
            _echo_field(name, value)
    _echo_field("next", next_step)
    states = event_state.destination_states(event, delivered_to)
    if states:
        click.echo()
        echo_table(
            ("destination", "state", "tries", "not before", "error"),
            [(state.destination, state.state, state.attempts, state.not_before, state.error) for state in states],
        )
    for name in ("headers", "payload"):
        click.echo(f"\n{name}:")
        click.echo(json.dumps(getattr(event, name), indent=2, ensure_ascii=True))


def _echo_field(name: str, value: object) -> None:
    click.echo(f"{name + ':':<17} {one_line(value)}")
