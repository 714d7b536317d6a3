"""Explain the state of one event or job: its state at each destination, and what happens to it next.

`outbox show` and the dashboard's page of an event show both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from outbox.admin.durations import format_duration
from outbox.settings import Settings
from outbox.storage.models import DELIVERED, FAILED, JOB, OutboxEvent
from outbox.storage.progress import OTHER_DESTINATIONS, parse


@dataclass(frozen=True, slots=True)
class DestinationState:
    """The state of an event at one destination."""

    destination: str
    state: str
    attempts: int | None
    not_before: datetime | None
    error: str | None


def destination_states(event: OutboxEvent, delivered_to: Sequence[str]) -> list[DestinationState]:
    """Return the state at each destination that the column `progress` names.

    An event that was delivered at the first attempt has no `progress`. Then each destination in `delivered_to` is
    returned as delivered.
    """
    entries = parse(event.progress)
    if not entries:
        return [DestinationState(name, DELIVERED, None, None, None) for name in delivered_to]
    return [
        DestinationState(name, entry.state, entry.attempts, entry.not_before, entry.error)
        for name, entry in entries.items()
        if name != OTHER_DESTINATIONS
    ]


def next_step(event: OutboxEvent, now: datetime, settings: Settings) -> str:
    """Return a sentence that says what happens to the event or job next, and what an operator can do."""
    it = f"the {event.kind}"
    if event.status == DELIVERED:
        done = "The job is delivered: its message was enqueued." if event.kind == JOB else f"{_start(it)} is delivered."
        return f"{done} It will be deleted {_deletion_time(event.delivered_at, now, settings)}."
    if event.status == FAILED:
        deletion = _deletion_time(event.updated_at, now, settings)
        return (
            f"{_start(it)} has failed and is not tried again automatically. Fix the cause, then run "
            f"`outbox retry {event.id}`. Otherwise {it} will be deleted {deletion}."
        )
    if event.lease_until is not None:
        return _describe_lease(it, event.lease_until, now)
    return _describe_wait(it, event, now, settings)


def _describe_lease(it: str, until: datetime, now: datetime) -> str:
    if until > now:
        return f"A worker is delivering {it}; its lease ends in {format_duration(until - now)} unless it is renewed."
    return (
        f"The worker that had {it} did not finish: its lease expired {format_duration(now - until)} ago. "
        f"The next sweep gives {it} to another worker."
    )


def _describe_wait(it: str, event: OutboxEvent, now: datetime, settings: Settings) -> str:
    if event.next_attempt_at > now:
        used = f"{event.attempts} of {event.max_attempts} attempts used"
        return f"The next attempt is in {format_duration(event.next_attempt_at - now)} ({used})."
    overdue = now - event.next_attempt_at
    if overdue < timedelta(seconds=2 * settings.sweep_seconds):
        return f"{_start(it)} is due now."
    return (
        f"{_start(it)} has been due for {format_duration(overdue)}: `outbox doctor` checks whether workers and the "
        "scheduler are running."
    )


def _start(words: str) -> str:
    """Return the words as the start of a sentence."""
    return words[0].upper() + words[1:]


def _deletion_time(ended_at: datetime, now: datetime, settings: Settings) -> str:
    remaining = ended_at + timedelta(hours=settings.retention_hours) - now
    return f"in {format_duration(remaining)}" if remaining > timedelta(0) else "by the next clean-up"
