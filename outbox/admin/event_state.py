"""Explain the state of one event: how far each destination is with it, and what happens next.

`outbox show` and the dashboard's page of an event show it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from outbox.admin.durations import format_duration
from outbox.settings import Settings
from outbox.storage.models import DELIVERED, FAILED, OutboxEvent
from outbox.storage.progress import OTHER_DESTINATIONS, parse


@dataclass(frozen=True, slots=True)
class DestinationState:
    """How far one destination is with the event."""

    destination: str
    state: str
    attempts: int | None
    not_before: datetime | None
    error: str | None


def destination_states(event: OutboxEvent, delivered_to: Sequence[str]) -> list[DestinationState]:
    """Return the state at each destination that `progress` names.

    An event that was delivered at once has no `progress`; then the states are those of `delivered_to`.
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
    """Return a sentence that says what happens to the event next, and what an operator can do."""
    if event.status == DELIVERED:
        return f"The event is delivered. It will be deleted {_deletion(event.delivered_at, now, settings)}."
    if event.status == FAILED:
        return (
            "The event has failed and is not tried again by itself: fix the cause, then run "
            f"`outbox retry {event.id}`. Without that it will be deleted {_deletion(event.updated_at, now, settings)}."
        )
    if event.lease_until is not None:
        return _under_lease(event.lease_until, now)
    return _waiting(event, now, settings)


def _under_lease(until: datetime, now: datetime) -> str:
    if until > now:
        return (
            f"A worker is delivering the event; its lease ends in {format_duration(until - now)} unless it is renewed."
        )
    return (
        f"The worker that had the event did not finish: its lease expired {format_duration(now - until)} ago. "
        "The next sweep gives the event to another worker."
    )


def _waiting(event: OutboxEvent, now: datetime, settings: Settings) -> str:
    if event.next_attempt_at > now:
        used = f"{event.attempts} of {event.max_attempts} attempts used"
        return f"The next attempt is in {format_duration(event.next_attempt_at - now)} ({used})."
    overdue = now - event.next_attempt_at
    if overdue < timedelta(seconds=2 * settings.sweep_seconds):
        return "The event is due now."
    return (
        f"The event has been due for {format_duration(overdue)}: `outbox doctor` checks whether workers and the "
        "scheduler are running."
    )


def _deletion(ended_at: datetime, now: datetime, settings: Settings) -> str:
    left = ended_at + timedelta(hours=settings.retention_hours) - now
    return f"in {format_duration(left)}" if left > timedelta(0) else "by the next clean-up"
