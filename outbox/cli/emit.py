"""`outbox emit`: emit one event from the command line."""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from typing import Any

import click

from outbox.cli.operator import operator
from outbox.cli.options import modules_option, parse_age
from outbox.current_outbox import current
from outbox.events.new_event import UNIQUE
from outbox.telemetry import audit

# The name of the action in the audit log.
EMIT = "emit"


@click.command(short_help="Emit an event.")
@click.argument("aggregate_type")
@click.argument("aggregate_id")
@click.argument("event_type")
@click.argument("payload", default="{}")
@click.option("--key", help="Set the idempotency key.  [default: AGGREGATE_TYPE:AGGREGATE_ID]")
@click.option("--unique", is_flag=True, help="Use the event's id as its idempotency key: it may be emitted again.")
@click.option(
    "--header", "headers", multiple=True, metavar="NAME=VALUE", help="Add a header; can be given several times."
)
@click.option("--correlation", metavar="ID", help="Set the correlation id.")
@click.option("--tenant", metavar="ID", help="Set the tenant's id.")
@click.option("--subject", help="Say whom the data is about: outbox erase --subject erases it.")
@click.option("--max-attempts", type=int, help="Use this instead of OUTBOX_MAX_ATTEMPTS.")
@click.option("--after", type=parse_age, metavar="AGE", help="Deliver it after this time: 90s, 15m, 2h.")
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
    subject: str | None,
    max_attempts: int | None,
    after: timedelta | None,
) -> None:
    """Emit an event, and print its id. PAYLOAD is a JSON object, or - to read it from standard input.

    The audit log records who has emitted it.
    """
    if unique and key is not None:
        raise click.UsageError("--key and --unique exclude each other: give one of them.")
    box = current()
    body = _parse_json(sys.stdin.read() if payload == "-" else payload)
    pairs = dict(_parse_header(header) for header in headers)
    about = {"type": event_type, "aggregate": f"{aggregate_type}:{aggregate_id}", "key": key, "tenant": tenant}
    given = about | {"unique": unique or None, "correlation": correlation, "max_attempts": max_attempts, "after": after}
    with (
        box.dialect.connection(),
        box.database.atomic(),  # OUTBOX_REQUIRE_TRANSACTION may require one
        # Without the payload and the headers: the audit log has no content of events.
        audit.record(box.dialect, operator(), EMIT, {}, {k: v for k, v in given.items() if v is not None}) as entry,
    ):
        event = box.emit(
            aggregate_type,
            aggregate_id,
            event_type,
            body,
            idempotency_key=UNIQUE if unique else key,
            headers=pairs,
            correlation_id=correlation,
            tenant_id=tenant,
            subject=subject,
            max_attempts=max_attempts,
            deliver_after=after,
        )
        entry.add([event.id])
    click.echo(event.id)


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"PAYLOAD is not valid JSON: {error}.") from None


def _parse_header(text: str) -> tuple[str, str]:
    name, equals_sign, value = text.partition("=")
    if not equals_sign or not name:
        raise click.BadParameter(f"--header takes NAME=VALUE, not {text!r}.")
    return name, value
