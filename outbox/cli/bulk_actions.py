"""`outbox bulk`: list actions on many events with their progress, stop one, and go on with one."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import click

from outbox.admin.durations import format_seconds
from outbox.cli.bulk import show_progress
from outbox.cli.interruption import Interruption
from outbox.cli.operator import operator
from outbox.cli.options import json_option, modules_option, parse_event_id
from outbox.cli.output import echo_json, echo_table
from outbox.current_outbox import current
from outbox.operations import bulk_actions
from outbox.operations.bulk_actions import BulkAction, bulk_action_of
from outbox.operations.count import Count
from outbox.telemetry.audit import find, latest


@click.group("bulk", short_help="List actions on many events; stop or resume one.", invoke_without_command=True)
@json_option
@modules_option
@click.pass_context
def bulk(context: click.Context, as_json: bool) -> None:
    """List the latest actions on many events, with their progress and rate.

    The process that was asked runs such an action: a command, or the dashboard. Any process can stop it. One that was
    interrupted can be resumed where it has ended.
    """
    if context.invoked_subcommand is not None:
        return
    box = current()
    box.check_schema()
    entries = latest(box.dialect)
    with box.dialect.bounded():
        now = box.dialect.now()
    found = [each for entry in entries if (each := bulk_action_of(entry, now)) is not None]
    if as_json:
        echo_json([_as_data(each) for each in found])
    elif found:
        _echo(found, now)
    else:
        click.echo("No operator has changed many events yet.")


@bulk.command(short_help="Stop an action on many events.")
@click.argument("id", type=parse_event_id)
@modules_option
def stop(id: UUID) -> None:
    """Stop the action with this ID after its current batch. The events that it has changed stay changed."""
    box = current()
    box.check_schema()
    bulk_actions.stop(box.dialect, id, operator=operator())
    click.echo("It stops after its current batch.")


@bulk.command(short_help="Resume an action that was interrupted.")
@click.argument("id", type=parse_event_id)
@modules_option
def resume(id: UUID) -> None:
    """Resume the action with this ID where it has ended, with the same filter and parameters."""
    box = current()
    box.check_schema()
    entry = find(box.dialect, id)
    total = 0 if entry is None or entry.total is None else max(0, entry.total - entry.affected)
    with Interruption() as interruption:
        work = bulk_actions.resume(
            box.dialect,
            box.notifier.notify_after_commit,
            box.registry,
            id,
            operator=operator(),
            sleep=interruption.requested.wait,
        )
        count = show_progress(work, total, "resume", "event", interruption)
    box.notifier.flush()
    click.echo(f"{Count(count).of('event')} more {'was' if count == 1 else 'were'} changed.")


def _echo(found: list[BulkAction], now: datetime) -> None:
    echo_table(
        ("id", "at (UTC)", "who", "action", "state", "changed", "of", "per second", "left"),
        [
            (
                each.entry.id,
                each.entry.at,
                each.entry.who,
                each.entry.action,
                each.state,
                Count(each.changed),
                Count(each.total),
                "" if each.per_second is None else f"{each.per_second:,.0f}",
                "" if each.seconds_left is None else format_seconds(each.seconds_left),
            )
            for each in found
        ],
        right=[5, 6, 7],
    )


def _as_data(each: BulkAction) -> dict[str, Any]:
    return {
        "id": each.entry.id,
        "at": each.entry.at,
        "who": each.entry.who,
        "action": each.entry.action,
        "filters": each.entry.filters,
        "parameters": each.entry.parameters,
        "state": each.state,
        "changed": each.changed,
        "total": each.total,
        "per_second": each.per_second,
        "seconds_left": each.seconds_left,
        "can_resume": each.can_resume,
    }
