"""Check the events themselves: expired leases, events that are due, unavailable destinations, and failed events."""

from __future__ import annotations

from collections.abc import Iterator

from outbox.admin.doctor.check import Context, Finding, ok, problem, warning
from outbox.admin.durations import format_seconds
from outbox.operations.count import Count
from outbox.storage.models import FAILED, PENDING, SENDING


def expired_leases(context: Context) -> Iterator[Finding]:
    """Check that no lease expired long ago.

    The next claim takes over an event whose lease has expired. So a lease that expired long ago means that no worker
    claims events.
    """
    now, settings = context.overview.now, context.box.settings
    allowed_seconds = max(context.thresholds.expired_seconds, settings.lease_seconds + 3 * settings.sweep_seconds)
    ended_at, expired = context.overview.backlog.oldest_expired_at, context.overview.backlog.expired
    if ended_at is None or (now - ended_at).total_seconds() <= allowed_seconds:
        yield ok("No lease expired without another worker claiming its event.")
        return
    longest = format_seconds((now - ended_at).total_seconds())
    yield problem(
        f"The leases of {expired.of('event')} have expired, the first "
        f"{longest} ago, and no worker has claimed these events since: the workers that had them died, and no other "
        "worker claims events.",
        "Make sure that workers (`outbox worker your.module`) run and reach the database, and read their logs. A "
        "scheduler (`outbox scheduler`) and a Redis that all of them share make the takeover faster.",
        brief=f"{expired.of('lease')} expired up to {longest} ago",
        events={"status": SENDING},
    )


def due_events(context: Context) -> Iterator[Finding]:
    """Check how long the oldest due event has been due and, if that is long, whether the backlog grows."""
    overview = context.overview
    minutes = overview.activity[-context.thresholds.growing_minutes - 1 : -1]  # without the current minute
    emitted = sum(minute.emitted for minute in minutes)
    ended = sum(minute.delivered + minute.failed for minute in minutes)
    oldest = overview.backlog.oldest_due_at
    overdue_seconds = 0.0 if oldest is None else (overview.now - oldest).total_seconds()
    due = overview.backlog.due
    since = format_seconds(overdue_seconds)
    if overdue_seconds < context.thresholds.late_seconds:
        yield ok(f"{due} events are due, the oldest for {since}." if oldest is not None else "No event is due.")
        return
    rates = f"in the last {len(minutes)} minutes {emitted:,} were emitted, and {ended:,} were delivered or failed"
    advice = (
        "Run `outbox status` to see whether a destination is slow or unavailable; if not, start more workers "
        "(`outbox worker your.module`), on more hosts."
    )
    grows = emitted > ended or not ended
    kind = problem if grows and overdue_seconds >= context.thresholds.very_late_seconds else warning
    trend = "and the backlog grows" if grows else "but the backlog shrinks"
    yield kind(
        f"{due} events are due, the oldest for {since}, {trend}: {rates}.",
        advice,
        brief=f"{due.of('event')} {'is' if due == Count(1) else 'are'} due, the oldest for {since}",
        events={"status": PENDING},
    )


def open_breakers(context: Context) -> Iterator[Finding]:
    """Check for open circuit breakers. A destination with an open one only gets an event now and then, as a test."""
    overview = context.overview
    open_states = {name: state for name, state in overview.breakers.items() if state.get("open")}
    for name, state in open_states.items():
        seconds = state.get("open_seconds")
        since = "is unavailable" if seconds is None else f"has been unavailable for {format_seconds(seconds)}"
        waiting = overview.waiting_at.get(name, Count(0))
        waits = f", {waiting.of('event')} {'waits' if waiting == Count(1) else 'wait'}" if waiting.number else ""
        yield problem(
            f"{name} {since}{waits}, and its circuit breaker is open: {state.get('error') or 'no error is known'}",
            f"Restore {name}. Its events wait for up to OUTBOX_MAX_AGE_HOURS "
            f"({context.box.settings.max_age_hours:g}), and are delivered once it is available again. "
            f"`outbox recover {name}` says that it is.",
            brief=f"{name} {since}{waits}",
            events={"destination": name},
        )
    if not open_states:
        yield ok("No circuit breaker is open.")


def failed_events(context: Context) -> Iterator[Finding]:
    """Check for failed events, which stay failed until an operator retries them."""
    overview = context.overview
    count = overview.counts[FAILED]
    if not count.number:
        yield ok("No event and no job has failed.")
        return
    causes = overview.failures
    most = f"; most often at {causes[0].destination or 'no destination'}: {causes[0].error}" if causes else ""
    yield warning(
        f"{overview.describe(FAILED)} {'has' if count == Count(1) else 'have'} failed and "
        f"{'is' if count == Count(1) else 'are'} not tried again{most}",
        "Run `outbox list --status failed` to see why, fix the cause, and run `outbox retry`. They are deleted "
        f"OUTBOX_RETENTION_HOURS ({context.box.settings.retention_hours:g}) after they failed.",
        brief=f"{overview.describe(FAILED)} {'has' if count == Count(1) else 'have'} failed",
        events={"status": FAILED},
    )
