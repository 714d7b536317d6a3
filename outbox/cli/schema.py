"""`outbox schema`: list the event types that the code declares, or print their JSON Schema."""

from __future__ import annotations

from typing import Any

import click

from outbox.application_modules import import_modules
from outbox.cli.options import json_option
from outbox.cli.output import echo_json, echo_table
from outbox.events.event_types import EventType, event_types, path_of
from outbox.events.typed_payload import json_schema


@click.command(short_help="List the declared event types, or their JSON Schema.")
@click.argument("modules", metavar="MODULE...", nargs=-1, required=True)
@json_option
def schema(modules: tuple[str, ...], as_json: bool) -> None:
    """List the event types that MODULE declares with `outbox.event`.

    With --json, print the JSON Schema of each version. It needs neither the database nor Redis.
    """
    import_modules(modules)
    if as_json:
        echo_json([_as_json(each) for each in event_types.declared])
        return
    rows = [
        (each.name, each.version, path_of(each.cls), ", ".join(map(str, sorted(event_types.upcasters_of(each.name)))))
        for each in event_types.declared
    ]
    if rows:
        echo_table(("type", "version", "class", "upcasters from"), rows)
    else:
        click.echo("The code declares no event types (@outbox.event).")


def _as_json(declared: EventType) -> dict[str, Any]:
    return {
        "type": declared.name,
        "version": declared.version,
        "class": path_of(declared.cls),
        "schema": json_schema(declared.cls),
    }
