"""`outbox audit`: list what operators did, or print the ids of the events that one action has changed."""

from __future__ import annotations

import json
import sys
from typing import Any
from uuid import UUID

import click

from outbox.cli.options import json_option, modules_option, parse_event_id
from outbox.cli.output import echo_json, echo_table
from outbox.cli.watch import watch_option
from outbox.current_outbox import current
from outbox.operations.erase import is_about
from outbox.storage.operator_models import Audit
from outbox.telemetry.audit import changed_ids, find, latest

NOT_FOUND = 1


@click.command(short_help="List what operators did.")
@click.argument("id", required=False, type=parse_event_id)
@click.option("--about", metavar="VALUE", help="Only erasures of this subject, tenant or aggregate's id.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="List at most this many.")
@json_option
@watch_option
@modules_option
def audit(id: UUID | None, about: str | None, limit: int, as_json: bool) -> None:
    """List the actions of operators, newest first: who, what, on which events, how many, and how it ended.

    With the ID of an action, print the ids of all events that it has changed or deleted, one a line. Entries of
    outbox erase have no names; --about finds those of a value that you know, among the latest entries (see --limit).
    """
    box = current()
    box.check_schema()
    if id is None:
        entries = latest(box.dialect, limit)
        _echo([each for each in entries if about is None or is_about(each.filters, about)], as_json=as_json)
        return
    entry = find(box.dialect, id)
    if entry is None:
        click.echo(f"There is no audit entry {id}. Entries are deleted after 90 days.", err=True)
        sys.exit(NOT_FOUND)
    if as_json:
        echo_json(_as_data(entry) | {"ids": list(changed_ids(box.dialect, id))})
        return
    for each in changed_ids(box.dialect, id):
        click.echo(each)


def _echo(entries: list[Audit], *, as_json: bool) -> None:
    if as_json:
        echo_json([_as_data(entry) for entry in entries])
    elif entries:
        echo_table(
            ("id", "at (UTC)", "who", "claims", "via", "action", "events", "outcome", "filter and parameters"),
            [
                (
                    entry.id,
                    entry.at,
                    entry.who,
                    entry.claimed,
                    entry.via,
                    entry.action,
                    entry.affected,
                    _outcome(entry),
                    json.dumps(entry.filters | (entry.parameters or {})),
                )
                for entry in entries
            ],
        )
    else:
        click.echo("No operator has done anything yet.")


def _outcome(entry: Audit) -> str:
    if entry.ended_at is None:
        return "not finished"
    return " by ".join(filter(None, (entry.outcome, entry.cause)))


def _as_data(entry: Audit) -> dict[str, Any]:
    return {name: getattr(entry, name) for name in Audit._meta.sorted_field_names}
