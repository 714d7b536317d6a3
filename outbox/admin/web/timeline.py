"""What has happened to an event, and when, as far as its row and the audit tell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from outbox.storage.models import DELIVERED, FAILED, OutboxEvent
from outbox.storage.operator_models import Audit
from outbox.storage.progress import parse


@dataclass(frozen=True, slots=True)
class Moment:
    at: datetime
    what: str
    kind: str = ""


def timeline(event: OutboxEvent, now: datetime, done: Iterable[Audit]) -> list[Moment]:
    """The oldest first; what is yet to come is last."""
    return sorted(_moments(event, now, done), key=lambda moment: moment.at)


def _moments(event: OutboxEvent, now: datetime, done: Iterable[Audit]) -> Iterator[Moment]:
    yield Moment(event.created_at, "Emitted")
    for name, entry in parse(event.progress).items():
        if entry.since is not None:
            yield Moment(entry.since, f"First trouble at {name}", "pending")
    for change in done:
        yield Moment(change.at, f"{change.action.capitalize()} by {change.who}", "hand")
    if event.status == DELIVERED:
        yield Moment(event.delivered_at, "Delivered to every destination", DELIVERED)
    elif event.status == FAILED:
        yield Moment(event.updated_at, f"Failed, after {_attempts(event)}", FAILED)
    else:
        yield from _unfinished(event, now)


def _unfinished(event: OutboxEvent, now: datetime) -> Iterator[Moment]:
    if event.attempts and event.lease_until is None:
        yield Moment(event.updated_at, f"{_attempts(event)} so far".capitalize(), "pending")
    if event.lease_until is not None:
        yield Moment(event.updated_at, "Taken by a worker", "sending")
        over = event.lease_until <= now
        yield Moment(event.lease_until, "Lease ran out" if over else "Lease runs out, unless renewed", "future")
    elif event.next_attempt_at is not None:
        yield Moment(event.next_attempt_at, "Due" if event.next_attempt_at <= now else "Next attempt", "future")


def _attempts(event: OutboxEvent) -> str:
    return f"{event.attempts} of {event.max_attempts} attempts"
