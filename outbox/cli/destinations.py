"""`outbox destinations` and `outbox retire`: list the destinations that workers have recorded, and remove one."""

from __future__ import annotations

import click

from outbox.admin.controls_view import controls_as_data, describe_controls, shown_name
from outbox.cli import complete_names
from outbox.cli.operator import operator
from outbox.cli.options import json_option, modules_option
from outbox.cli.output import echo_json, echo_table
from outbox.cli.watch import watch_option
from outbox.current_outbox import current
from outbox.destinations.controls import read_controls
from outbox.destinations.recorded_destinations import RecordedDestination, read_recorded
from outbox.destinations.retirement import retire as retire_destination


@click.command(short_help="List the destinations that workers have recorded.")
@json_option
@watch_option
@modules_option
def destinations(as_json: bool) -> None:
    """List the destinations that workers have recorded. An event goes to each of them that wants its type.

    Also listed is what is paused or throttled (outbox pause, outbox throttle).
    """
    box = current()
    box.check_schema()
    with box.dialect.bounded():
        recorded = sorted(read_recorded(box.dialect)[1].values(), key=lambda each: each.name)
        controls, now = read_controls(box.dialect)
    in_force = describe_controls(controls, now)
    if as_json:
        echo_json(
            [
                {"name": each.name, "events": list(each.patterns), "state": _state(each)}
                | controls_as_data(controls, now, each.name)
                for each in recorded
            ]
        )
        return
    rows = [(each.name, _state(each), in_force.get(each.name), ", ".join(each.patterns)) for each in recorded]
    names = {each.name for each in recorded}
    rows += [(shown_name(name), "", text, "") for name, text in in_force.items() if name not in names]
    if rows:
        echo_table(("name", "state", "control", "events"), rows)
    else:
        click.echo("No worker has recorded any destination yet.")


@click.command(short_help="Stop delivering to a destination that no longer exists.")
@click.argument("name", shell_complete=complete_names.destinations)
@click.option("--force", is_flag=True, help="Retire it even if a running worker has it.")
@click.option("-y", "--yes", is_flag=True, help="Don't ask for confirmation.")
@modules_option
def retire(name: str, force: bool, yes: bool) -> None:
    """Stop delivering to a destination that no longer exists.

    Events no longer wait for it, and don't fail because of it. If a worker starts with a destination of this name, it
    is used again.
    """
    box = current()
    box.check_schema()
    with box.dialect.bounded():
        is_known = name in read_recorded(box.dialect)[1]
    if is_known and not yes:
        click.confirm(f"Events that wait for {name} will not be delivered to it. Continue?", abort=True, err=True)
    retire_destination(box.dialect, name, retired_by=operator(), force=force)
    click.echo(f"{name} is retired.")


def _state(destination: RecordedDestination) -> str:
    if destination.retired:
        return "retired" if destination.replaced_by is None else f"replaced by {destination.replaced_by}"
    return "running" if destination.alive else "no worker has it"
