"""`outbox show ID`: show everything about one event or job."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

from outbox.admin import event_state, queries
from outbox.admin.blocked_keys import order_of
from outbox.admin.durations import format_seconds
from outbox.admin.job_view import JobView, job_view
from outbox.admin.masking import MASKED
from outbox.admin.readable_row import readable_row
from outbox.cli.content import Content, masked_content
from outbox.cli.event_id import EventId, parse_partial_id, resolve
from outbox.cli.operator import operator
from outbox.cli.options import json_option, modules_option
from outbox.cli.output import echo_json, echo_table, event_as_json, one_line, wait_as_json
from outbox.core import Outbox
from outbox.current_outbox import current
from outbox.operations.filters import Filter
from outbox.storage.attempts import read_attempts
from outbox.storage.models import JOB, OutboxEvent
from outbox.storage.operator_models import Attempt
from outbox.telemetry import audit

NOT_FOUND = 1
# The name of the action in the audit log.
SHOW_UNMASKED = "show unmasked"


@click.command(short_help="Show everything about one event or job.")
@click.argument("given", metavar="ID", type=parse_partial_id)
@click.option("--unmasked", is_flag=True, help="Print masked values, too; the audit log records who has seen them.")
@json_option
@modules_option
def show(given: EventId, unmasked: bool, as_json: bool) -> None:
    """Show everything about one event: its state at each destination, what happens next, headers and payload.

    Of a job: the actor, the arguments and options of its message, the queue, when it is due, and what happens next.

    The values of keys in OUTBOX_MASKED_KEYS, such as passwords, are printed as •••.
    """
    box = current()
    box.check_schema()
    id = resolve(box, given)
    event = queries.find(box.dialect, id)
    if event is None:
        click.echo(f"There is no event or job {id}. It may have been deleted after its retention.", err=True)
        sys.exit(NOT_FOUND)
    event, unreadable = readable_row(event, box.cipher)
    attempts = read_attempts(box.dialect, event.id)
    with box.dialect.bounded():
        now, order = box.dialect.now(), order_of(box.dialect, event)
        next_step = event_state.next_step(event, now, box.settings, order)
        delivered_to = queries.delivered_to(box.dialect, event)
    content = _whole_content(box, event) if unmasked else masked_content(box, event)
    if as_json:
        audience = None if event.audience is None else list(delivered_to)
        more: dict[str, Any] = {"waits_behind": [wait_as_json(each) for each in order.waits]}
        more |= {"attempts_made": [_attempt_as_data(each) for each in attempts]}
        more |= {} if unreadable is None else {"unreadable": unreadable}
        echo_json(event_as_json(event) | content._asdict() | {"audience": audience, "next": next_step} | more)
    else:
        _echo(event, content, next_step, delivered_to, unreadable=unreadable, attempts=attempts)
    if unreadable is None and content != Content(event.payload, event.headers):
        click.echo(
            f"Some values are masked ({MASKED}) or redacted; `outbox show --unmasked {id}` prints all.", err=True
        )


def _whole_content(box: Outbox, event: OutboxEvent) -> Content:
    """Return the content as it is stored, after an entry in the audit log. Without the entry, nothing is shown."""
    with (
        box.dialect.connection(),
        audit.record(box.dialect, operator(), SHOW_UNMASKED, Filter(ids=(event.id,)).to_json()) as entry,
        box.dialect.lock_limit(),
    ):
        entry.add([event.id])
    return Content(event.payload, event.headers)


def _echo(
    event: OutboxEvent,
    content: Content,
    next_step: str,
    delivered_to: Sequence[str],
    *,
    unreadable: str | None,
    attempts: Sequence[Attempt],
) -> None:
    job = None if isinstance(content.payload, str) or event.kind != JOB else job_view(event, content.payload)
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
    _echo_attempts(attempts)
    if unreadable is not None:
        click.echo(f"\nheaders and {'message' if job else 'payload'}: not shown: {unreadable}")
        return
    _echo_object("headers", content.headers)
    if job is None:
        _echo_object("payload", content.payload)
    elif job.is_opaque:
        click.echo(f"\nmessage: {job.opaque_reason}")
    else:
        _echo_object("args", job.args)
        _echo_object("kwargs", job.kwargs)
        _echo_object("options", job.options)


def _echo_attempts(attempts: Sequence[Attempt]) -> None:
    """Print the history of attempts. By default it has those that failed, up to 20."""
    if attempts:
        click.echo()
        echo_table(
            ("attempt at (UTC)", "destination", "took", "outcome", "status", "worker", "error"),
            [
                (
                    each.at,
                    each.destination,
                    format_seconds(each.seconds),
                    each.outcome,
                    each.http_status,
                    each.worker,
                    each.error,
                )
                for each in attempts
            ],
        )


def _attempt_as_data(attempt: Attempt) -> dict[str, Any]:
    names = [name for name in Attempt._meta.sorted_field_names if name not in ("id", "event_id")]
    return {name: getattr(attempt, name) for name in names}


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
    echo_json(value)


def _echo_field(name: str, value: object) -> None:
    click.echo(f"{name + ':':<17} {one_line(value)}")
