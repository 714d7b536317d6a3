"""`outbox erase`: blank what events hold about a subject, a tenant or an aggregate."""

from __future__ import annotations

import sys
import time
from datetime import timedelta

import click

from outbox.cli.breakdown import echo_breakdown
from outbox.cli.bulk import show_progress
from outbox.cli.interruption import Interruption
from outbox.cli.operator import operator
from outbox.cli.options import modules_option, parse_age
from outbox.core import Outbox
from outbox.current_outbox import current
from outbox.operations import erase as operation
from outbox.operations.breakdown import breakdown_of
from outbox.operations.count import Count
from outbox.operations.erase import DROP, PENDING_CHOICES, REFUSE, Preview
from outbox.operations.filters import Filter
from outbox.storage.models import EVENT, OutboxEvent

# The exit code if nothing matches, or if events are left.
LEFT = 1
LOOK_SECONDS = 0.5


@click.command(short_help="Erase what events hold about someone.")
@click.option("--subject", metavar="NAME", help="The subject that was given to emit: user:7.")
@click.option("--tenant", metavar="ID", help="All events and jobs of this tenant.")
@click.option("--aggregate", metavar="TYPE:ID", help="All events of this aggregate: Order:7.")
@click.option(
    "--pending",
    type=click.Choice(PENDING_CHOICES),
    default=REFUSE,
    show_default=True,
    help="What becomes of events that have not ended: refuse to erase anything, deliver them first, or drop them.",
)
@click.option("--wait", type=parse_age, metavar="TIME", help="Wait so long for events that have not ended: 90s, 15m.")
@click.option("--keep-keys", is_flag=True, help="Keep the idempotency keys that the application has chosen.")
@click.option("-y", "--yes", is_flag=True, help="Don't ask for confirmation.")
@click.option("--dry-run", is_flag=True, help="Only print which events would be erased.")
@click.option(
    "--per-second", type=click.FloatRange(min=0, min_open=True), help="Erase at most this many events per second."
)
@modules_option
def erase(
    *,
    subject: str | None,
    tenant: str | None,
    aggregate: str | None,
    pending: str,
    wait: timedelta | None,
    keep_keys: bool,
    yes: bool,
    dry_run: bool,
    per_second: float | None,
) -> None:
    """Blank payloads, headers, errors and the history of attempts of all events about a subject.

    The rows stay, with their ids, types, aggregates and times. They can't be retried or replayed any more. The audit
    log does not say whom it was about. It can be interrupted and run again. The exit code is 1 if events are left.
    """
    box = current()
    box.check_schema()
    filter = _filter(subject, tenant, aggregate)
    found = operation.preview(box.dialect, filter)
    if dry_run:
        _echo_dry_run(box, filter, found)
        return
    if pending == REFUSE and found.unfinished:
        raise operation.UnfinishedEvents(operation.refusal(found).replace("pending=", "--pending="))
    if not found.ended and not found.unfinished:
        click.echo("No events to be erased match.")
        sys.exit(LEFT)
    if not yes:
        _confirm(found, pending)
    total = _erase_all(box, filter, pending, keep_keys=keep_keys, per_second=per_second, wait=wait)
    box.notifier.flush()
    click.echo(f"{Count(total).of(EVENT)} {'was' if total == 1 else 'were'} erased.")
    left = operation.preview(box.dialect, filter)
    if left.ended or left.unfinished:
        _echo_left(left)
        sys.exit(LEFT)


def _filter(subject: str | None, tenant: str | None, aggregate: str | None) -> Filter:
    if subject is None and tenant is None and aggregate is None:
        raise click.UsageError("Give --subject, --tenant or --aggregate.")
    aggregate_type, colon, aggregate_id = (aggregate or "").partition(":")
    if aggregate is not None and not (aggregate_type and colon and aggregate_id):
        raise click.UsageError("--aggregate needs the id, too: Order:7.")
    return Filter(
        subject=subject, tenant_id=tenant, aggregate_type=aggregate_type or None, aggregate_id=aggregate_id or None
    )


def _erase_all(
    box: Outbox, filter: Filter, pending: str, *, keep_keys: bool, per_second: float | None, wait: timedelta | None
) -> int:
    """Erase what matches, again and again until nothing is left or the wait is over; return how many were erased."""
    total, ends_at = 0, time.monotonic() + (0.0 if wait is None else wait.total_seconds())
    with Interruption() as interruption:
        while True:
            found = operation.preview(box.dialect, filter)
            due = found.ended + (found.waiting if pending == DROP else 0)
            if due:
                work = operation.erase(
                    box.dialect,
                    box.notifier.notify_after_commit,
                    filter,
                    operator=operator(),
                    pending=pending,
                    keep_keys=keep_keys,
                    per_second=per_second,
                    sleep=interruption.requested.wait,
                )
                total += show_progress(work, due, "erase", EVENT, interruption, can_resume=False)
                found = operation.preview(box.dialect, filter)
            if not (found.ended or found.unfinished) or time.monotonic() >= ends_at:
                return total
            if interruption.requested.wait(LOOK_SECONDS):
                sys.exit(interruption.exit_code)


def _confirm(found: Preview, pending: str) -> None:
    for sentence in operation.CONSEQUENCES:
        click.echo(sentence, err=True)
    number = found.ended
    if pending == DROP and found.unfinished:
        number += found.unfinished
        click.echo(f"{Count(found.unfinished).of(EVENT)} will be dropped without being delivered.", err=True)
    click.confirm(f"{Count(number).of(EVENT)} will be erased. Continue?", abort=True, err=True)


def _echo_dry_run(box: Outbox, filter: Filter, found: Preview) -> None:
    click.echo(f"{Count(found.ended).of(EVENT)} would be erased.")
    if found.unfinished:
        in_delivery = f"{found.being_delivered:,} of them being delivered"
        click.echo(f"{Count(found.unfinished).of(EVENT)} not ended, {in_delivery}: see --pending.")
    conditions = [*filter.conditions(box.database), OutboxEvent.erased_at.is_null()]
    echo_breakdown(breakdown_of(box.dialect, conditions))


def _echo_left(left: Preview) -> None:
    reasons = (
        (left.being_delivered, "being delivered right now"),
        (left.waiting, "waiting to be delivered"),
        (left.ended, "locked by another transaction, or ended meanwhile"),
    )
    shown = ", ".join(f"{number:,} {reason}" for number, reason in reasons if number)
    click.echo(f"Left: {shown}. Run the same command again, or with --wait.", err=True)
