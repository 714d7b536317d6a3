"""`outbox keys`: list the ordering keys whose events wait, and the events that they wait behind."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Any

import click

from outbox.admin.blocked_keys import BlockedKey, BlockedKeys, describe_head, read_blocked_keys
from outbox.admin.durations import format_duration
from outbox.cli.options import json_option, modules_option
from outbox.cli.output import echo_json, echo_table, event_as_json
from outbox.cli.watch import watch_option
from outbox.current_outbox import current
from outbox.text import shorten

ERROR_LENGTH = 160
HEAD_FIELDS = ("id", "seq", "event_type", "status", "attempts", "next_attempt_at", "error_message")


@click.command(short_help="List blocked ordering keys.")
@click.argument("key", required=False)
@click.option(
    "--limit", default=20, show_default=True, type=click.IntRange(1, 1000), help="List at most this many keys."
)
@json_option
@watch_option
@modules_option
def keys(key: str | None, limit: int, as_json: bool) -> None:
    """List the ordering keys whose events wait behind an earlier one, the longest wait first; or only KEY.

    A key is listed for each destination at which it is blocked, with the event that holds it back there. If that event
    has failed, the key stays blocked until you retry it (outbox retry), or skip it (outbox skip).
    """
    box = current()
    box.check_schema()
    with box.dialect.bounded():
        now = box.dialect.now()
        found = read_blocked_keys(box.dialect, key=key, limit=limit)
    if as_json:
        echo_json(_as_data(found))
    elif not found.longest:
        click.echo("No key is blocked." if key is None else "No event of this key waits behind another.")
    else:
        _echo(found, now)


def _as_data(found: BlockedKeys) -> dict[str, Any]:
    return {
        "count": asdict(found.count),
        "keys": [
            {
                "key": each.key,
                "destination": each.destination,
                "waiting": asdict(each.waiting),
                "since": each.since,
                "behind": None if each.head is None else event_as_json(each.head, *HEAD_FIELDS),
            }
            for each in found.longest
        ],
    }


def _echo(found: BlockedKeys, now: datetime) -> None:
    echo_table(
        ("key", "destination", "waiting", "for", "behind", "type", "state", "error"),
        [_row(each, now) for each in found.longest],
        right=[2],
    )
    more = len(found.longest) < found.count.number or found.count.at_least
    if more:
        click.echo(f"{found.count.of('key')} in all. To list more: --limit", err=True)
    if any(each.is_failed for each in found.longest):
        click.echo(
            "To go on after a failed event, fix the cause and run: outbox retry ID. Without it: outbox skip ID. If "
            "other destinations still try it, run outbox fail ID before the retry.",
            err=True,
        )


def _row(blocked: BlockedKey, now: datetime) -> tuple[object, ...]:
    head = blocked.head
    return (
        blocked.key,
        blocked.destination,
        blocked.waiting,
        format_duration(now - blocked.since),
        "" if head is None else head.id,
        "" if head is None else head.event_type,
        describe_head(blocked, now),
        "" if head is None or head.error_message is None else shorten(head.error_message, ERROR_LENGTH),
    )
