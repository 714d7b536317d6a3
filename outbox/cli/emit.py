"""`outbox emit`: an event by hand."""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from typing import Any

import click

from outbox.cli.options import age, modules_option
from outbox.current_outbox import current
from outbox.events.emit import UNIQUE


@click.command(short_help="Emit an event by hand.")
@click.argument("aggregate_type")
@click.argument("aggregate_id")
@click.argument("event_type")
@click.argument("payload", default="{}")
@click.option("--key", help="The idempotency key.  [default: AGGREGATE_TYPE:AGGREGATE_ID]")
@click.option("--unique", is_flag=True, help="An event that may repeat.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="May be given several times.")
@click.option("--correlation", metavar="ID", help="The correlation id.")
@click.option("--tenant", metavar="ID", help="The tenant's id.")
@click.option("--max-attempts", type=int, help="Instead of OUTBOX_MAX_ATTEMPTS.")
@click.option("--after", type=age, metavar="AGE", help="Deliver it not before that time from now: 90s, 15m, 2h.")
@modules_option
def emit(
    aggregate_type: str,
    aggregate_id: str,
    event_type: str,
    payload: str,
    *,
    key: str | None,
    unique: bool,
    headers: tuple[str, ...],
    correlation: str | None,
    tenant: str | None,
    max_attempts: int | None,
    after: timedelta | None,
) -> None:
    """Emit an event by hand; prints its id. PAYLOAD is JSON, or - to read it from standard input."""
    if unique and key is not None:
        raise click.UsageError("--key and --unique contradict each other: give one of them.")
    box = current()
    what = _parsed(sys.stdin.read() if payload == "-" else payload)
    pairs = dict(_pair(header) for header in headers)
    with box.dialect.connection(), box.database.atomic():  # OUTBOX_REQUIRE_TRANSACTION holds here too
        event = box.emit(
            aggregate_type,
            aggregate_id,
            event_type,
            what,
            idempotency_key=UNIQUE if unique else key,
            headers=pairs,
            correlation_id=correlation,
            tenant_id=tenant,
            max_attempts=max_attempts,
            deliver_after=after,
        )
    click.echo(event.id)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"PAYLOAD is no JSON: {error}.") from None


def _pair(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found or not name:
        raise click.BadParameter(f"--header takes NAME=VALUE, not {text!r}.")
    return name, value
