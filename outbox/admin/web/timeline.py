"""List what has happened to one event, and when, for its page. The data come from the event's row and the audit log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from outbox.admin.blocked_keys import BlockedKey
from outbox.storage.models import DELIVERED, FAILED, JOB, OutboxEvent
from outbox.storage.operator_models import Audit
from outbox.storage.progress import parse
from outbox.storage.status import is_parked


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One line of the timeline; `kind` is its CSS class."""

    at: datetime
    text: str
    kind: str = ""


def make_timeline(
    event: OutboxEvent, now: datetime, audits: Iterable[Audit], waits: Iterable[BlockedKey] = ()
) -> list[TimelineEntry]:
    """Return the entries by time, oldest first. Entries in the future are last."""
    return sorted(_entries(event, now, audits, waits), key=lambda entry: entry.at)


def _entries(
    event: OutboxEvent, now: datetime, audits: Iterable[Audit], waits: Iterable[BlockedKey]
) -> Iterator[TimelineEntry]:
    is_job = event.kind == JOB
    yield TimelineEntry(event.created_at, "Sent" if is_job else "Emitted")
    for name, progress in parse(event.progress).items():
        if progress.since is not None:
            where = "" if is_job else f" at {name}"
            # Without an attempt it was put off: its circuit breaker was open, or it could not be reached.
            what = "First failed attempt" if progress.attempts else "First put off"
            yield TimelineEntry(progress.since, f"{what}{where}", "pending")
    for wait in waits:
        yield TimelineEntry(wait.since, f"Waits at {wait.destination} behind an earlier event of its key", "pending")
    for audit in audits:
        yield TimelineEntry(audit.at, f"{audit.action.capitalize()} by {audit.who}", "operator")
    if event.status == DELIVERED:
        yield TimelineEntry(event.delivered_at, "Enqueued" if is_job else "Delivered to every destination", DELIVERED)
    elif event.status == FAILED:
        yield TimelineEntry(event.updated_at, f"Failed, after {_format_attempts(event)}", FAILED)
    else:
        yield from _unfinished_entries(event, now)


def _unfinished_entries(event: OutboxEvent, now: datetime) -> Iterator[TimelineEntry]:
    if event.attempts and event.lease_until is None:
        yield TimelineEntry(event.updated_at, f"{_format_attempts(event)} so far".capitalize(), "pending")
    if event.lease_until is not None:
        yield TimelineEntry(event.updated_at, "Claimed by a worker", "sending")
        expired = event.lease_until <= now
        yield TimelineEntry(
            event.lease_until, "Lease expired" if expired else "Lease expires, unless renewed", "future"
        )
    elif event.next_attempt_at is not None and not is_parked(event):
        yield TimelineEntry(event.next_attempt_at, "Due" if event.next_attempt_at <= now else "Next attempt", "future")


def _format_attempts(event: OutboxEvent) -> str:
    return f"{event.attempts} of {event.max_attempts} attempts"
