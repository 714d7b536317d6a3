"""What waits, and whether it gets less: leases that ran out, a backlog, destinations left alone, and what failed."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from outbox.admin.doctor.check import Context, Finding, ok, problem, warning
from outbox.admin.durations import format_seconds
from outbox.operations.count import COUNT_CAP
from outbox.storage import timestamp
from outbox.storage.models import FAILED, OutboxEvent
from outbox.storage.status import is_unfinished


def leases(context: Context) -> Iterator[Finding]:
    """One that ran out is taken over at the next claim; if not, nobody claims."""
    now, settings = context.overview.now, context.box.settings
    patience = max(context.thresholds.expired_seconds, settings.lease_seconds + 3 * settings.sweep_seconds)
    event = OutboxEvent
    query = event.select(event.lease_until).where(*is_unfinished()).order_by(event.next_attempt_at).limit(COUNT_CAP)
    ends = [timestamp.from_database(end) for (end,) in context.box.dialect.select(query.tuples()) if end is not None]
    lost = [end for end in ends if end < now - timedelta(seconds=patience)]
    if not lost:
        yield ok("No lease has run out without somebody noticing.")
        return
    longest = format_seconds((now - min(lost)).total_seconds())
    yield problem(
        f"{len(lost):,}{'+' if len(lost) == COUNT_CAP else ''} events belong to workers that died, the first for "
        f"{longest}, and nobody has taken them over.",
        "See that workers (`outbox worker your.module`) run and reach the database, and what their log says; a "
        "scheduler (`outbox scheduler`) and a Redis that both share make it faster.",
    )


def growing(context: Context) -> Iterator[Finding]:
    overview = context.overview
    minutes = overview.activity[-context.thresholds.growing_minutes - 1 : -1]  # the one that goes on is not over
    emitted = sum(minute.emitted for minute in minutes)
    ended = sum(minute.delivered + minute.failed for minute in minutes)
    oldest = overview.backlog.oldest_due_at
    late = 0.0 if oldest is None else (overview.now - oldest).total_seconds()
    due = f"{overview.backlog.due.number:,}{'+' if overview.backlog.due.at_least else ''}"
    since = format_seconds(late)
    if late < context.thresholds.late_seconds:
        yield ok(f"{due} events are due, the oldest since {since}." if oldest is not None else "No event is due.")
        return
    pace = f"in the last {len(minutes)} minutes {emitted:,} were emitted, and {ended:,} delivered or failed"
    advice = (
        "See with `outbox status` whether a destination is slow or down; if not, start more workers "
        "(`outbox worker your.module`), on more hosts."
    )
    if emitted > ended or not ended:
        yield problem(f"{due} events are due, the oldest since {since}, and the backlog grows: {pace}.", advice)
    else:
        yield warning(f"{due} events are due, the oldest since {since}, but it gets less: {pace}.", advice)


def breakers(context: Context) -> Iterator[Finding]:
    """Destinations that can't be reached are tried with one event at a time."""
    found = {name: each for name, each in context.overview.breakers.items() if each.get("open")}
    for name, each in found.items():
        yield warning(
            f"{name} can't be reached, and is left alone: {each.get('error') or 'no reason given'}",
            f"See to {name}; its events wait meanwhile, for up to OUTBOX_MAX_AGE_HOURS "
            f"({context.box.settings.max_age_hours:g}), and go on by themselves.",
        )
    if not found:
        yield ok("No destination is being left alone.")


def failed(context: Context) -> Iterator[Finding]:
    count = context.overview.counts[FAILED]
    if not count.number:
        yield ok("No event has failed.")
        return
    causes = context.overview.failures
    top = f"; most often at {causes[0].destination or 'no destination'}: {causes[0].error}" if causes else ""
    yield warning(
        f"{count.number:,}{'+' if count.at_least else ''} events have failed, and wait for somebody{top}",
        "See why with `outbox list --status failed`, see to the cause, and run `outbox retry`; they are deleted "
        f"OUTBOX_RETENTION_HOURS ({context.box.settings.retention_hours:g}) after they failed.",
    )
