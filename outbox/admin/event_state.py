"""Explain the state of one event or job: its state at each destination, and what happens to it next.

`outbox show` and the dashboard's page of an event show both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from outbox.admin.blocked_keys import BlockedKey, EventOrder, describe_waits, how_to_go_on
from outbox.admin.durations import format_duration
from outbox.settings import Settings
from outbox.storage.models import DELIVERED, FAILED, JOB, OutboxEvent
from outbox.storage.progress import OTHER_DESTINATIONS, parse
from outbox.storage.status import is_parked

NO_ORDER = EventOrder()
# An event that has just been released, or parked, while the page was read.
BEHIND_ANOTHER = "behind an earlier event of its ordering key"


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


def next_step(event: OutboxEvent, now: datetime, settings: Settings, order: EventOrder = NO_ORDER) -> str:
    """Return sentences that say what happens to the event or job next, and what an operator can do."""
    it = f"the {event.kind}"
    if event.erased_at is not None:
        return _describe_erased(it, event, now, settings)
    if event.status == DELIVERED:
        done = "The job is delivered: its message was enqueued." if event.kind == JOB else f"{_start(it)} is delivered."
        return f"{done} It will be deleted {_deletion_time(event.delivered_at, now, settings)}."
    if event.status == FAILED:
        return _describe_failure(it, event, now, settings, order)
    if event.lease_until is not None:
        return _describe_lease(it, event.lease_until, now)
    if is_parked(event):
        wait = f"{_start(it)} waits {describe_waits(order.waits, now) or BEHIND_ANOTHER}."
    else:
        wait = _describe_wait(it, event, now, settings)
        if order.waits:
            wait += f" It also waits {describe_waits(order.waits, now)}."
    # It may have failed at one destination, and wait for a retry at another.
    return wait + _go_on([*order.waits, *order.holds_back])


def _describe_erased(it: str, event: OutboxEvent, now: datetime, settings: Settings) -> str:
    """Say that only the row is left. It may hold back later events of its ordering key until it is skipped."""
    ended_at = event.updated_at if event.delivered_at is None else event.delivered_at
    return (
        f"The content of {it} was erased: it can't be replayed or retried. The row will be deleted "
        f"{_deletion_time(ended_at, now, settings)}."
    )


def _describe_failure(it: str, event: OutboxEvent, now: datetime, settings: Settings, order: EventOrder) -> str:
    text = (
        f"{_start(it)} has failed and is not tried again automatically. Fix the cause, then run "
        f"`outbox retry {event.id}`."
    )
    if not order.holds_back:
        return f"{text} Otherwise {it} will be deleted {_deletion_time(event.updated_at, now, settings)}."
    others = ", and ".join(f"{each.waiting.of('later event')} at {each.destination}" for each in order.holds_back)
    return (
        f"{text} Behind it, {others} of the same ordering key wait: `outbox skip {event.id}` lets them go on without "
        "it. It is not deleted while they wait."
    )


def _go_on(waits: Sequence[BlockedKey]) -> str:
    """Return what an operator can do if a failed event is waited for, as a sentence; "" if none is."""
    return "".join(f" {sentence}" for sentence in how_to_go_on(waits))


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
