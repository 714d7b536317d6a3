"""`outbox show ID`: show everything about one event or job."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import click

from outbox.admin import event_state, queries
from outbox.admin.job_view import OPAQUE, JobView, job_view
from outbox.cli.options import json_option, modules_option, parse_event_id
from outbox.cli.output import echo_json, echo_table, event_as_json, one_line
from outbox.current_outbox import current
from outbox.storage.models import JOB, OutboxEvent

NOT_FOUND = 1


@click.command(short_help="Show everything about one event or job.")
@click.argument("id", type=parse_event_id)
@json_option
@modules_option
def show(id: UUID, as_json: bool) -> None:
    """Show everything about one event: its state at each destination, what happens next, headers and payload.

    Of a job: the actor, the arguments and options of its message, the queue, when it is due, and what happens next.
    """
    box = current()
    box.check_schema()
    event = queries.find(box.dialect, id)
    if event is None:
        click.echo(f"There is no event or job {id}. It may have been deleted after its retention.", err=True)
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
    job = job_view(event, event.payload) if event.kind == JOB else None
    for name, value in _fields(event, job).items():
        if value is not None:
            _echo_field(name, value)
    _echo_field("next", next_step)
    states = event_state.destination_states(event, delivered_to)
    if states:
        click.echo()
        echo_table(
            ("destination", "state", "tries", "not before", "error"),
            [(state.destination, state.state, state.attempts, state.not_before, state.error) for state in states],
        )
    _echo_object("headers", event.headers)
    if job is None:
        _echo_object("payload", event.payload)
    elif job.is_opaque:
        click.echo(f"\nmessage: {OPAQUE}")
    else:
        _echo_object("args", job.args)
        _echo_object("kwargs", job.kwargs)
        _echo_object("options", job.options)


def _fields(event: OutboxEvent, job: JobView | None) -> dict[str, Any]:
    """Return the columns to print, by name. Those of a job are named in Dramatiq's words."""
    columns = event_as_json(event)
    left_out = ["payload", "headers", "progress", "audience"]
    first: dict[str, Any] = {}
    if job is not None:
        left_out += ["aggregate_type", "aggregate_id", "event_type", "idempotency_key", "actor", "queue", "message_id"]
        first = {"kind": JOB, "actor": job.actor, "queue": job.queue}
        first |= {"message_id": job.message_id, "idempotency_key": job.key, "due": event.next_attempt_at}
        left_out.append("next_attempt_at")
    return first | {name: value for name, value in columns.items() if name not in left_out}


def _echo_object(name: str, value: object) -> None:
    click.echo(f"\n{name}:")
    click.echo(json.dumps(value, indent=2, ensure_ascii=True))


def _echo_field(name: str, value: object) -> None:
    click.echo(f"{name + ':':<17} {one_line(value)}")
