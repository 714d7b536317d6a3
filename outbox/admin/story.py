"""An event's story, for people: what has happened to it, and what happens next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from outbox.settings import Settings
from outbox.storage.models import DELIVERED, FAILED, OutboxEvent
from outbox.storage.progress import OTHERS, parse

# A unit, its seconds, and the next smaller one.
UNITS = (("d", 86_400, "h", 3_600), ("h", 3_600, "min", 60), ("min", 60, "s", 1), ("s", 1, "ms", 1))
FEW = 10


@dataclass(frozen=True, slots=True)
class Stop:
    """How far one destination is with the event."""

    destination: str
    state: str
    attempts: int | None
    not_before: datetime | None
    error: str | None


def stops(event: OutboxEvent, had_by: Sequence[str]) -> list[Stop]:
    """Return where it has been and where it has yet to go; `had_by` are the names that a delivered event keeps."""
    progress = parse(event.progress)
    if not progress:
        return [Stop(name, DELIVERED, None, None, None) for name in had_by]
    return [
        Stop(
            destination=name,
            state=entry.state,
            attempts=entry.attempts,
            not_before=entry.not_before,
            error=entry.error,
        )
        for name, entry in progress.items()
        if name != OTHERS
    ]


def next_step(event: OutboxEvent, now: datetime, settings: Settings) -> str:
    """What happens to it next, and what an operator may do about it."""
    if event.status == DELIVERED:
        return f"It has ended, and is deleted {_retention(event.delivered_at, now, settings)}."
    if event.status == FAILED:
        return (
            f"It is not tried again by itself: mend the cause, then retry it (`outbox retry {event.id}`). "
            f"It is deleted {_retention(event.updated_at, now, settings)}."
        )
    if event.lease_until is not None:
        return _under_lease(event.lease_until, now)
    return _waiting(event, now, settings)


def _under_lease(until: datetime, now: datetime) -> str:
    if until > now:
        return f"A worker is delivering it now, and has it for another {duration(until - now)}."
    return (
        f"Its worker has not been heard of: the lease ran out {duration(now - until)} ago. "
        "The next sweep gives it to another."
    )


def _waiting(event: OutboxEvent, now: datetime, settings: Settings) -> str:
    if event.next_attempt_at > now:
        used = f"{event.attempts} of {event.max_attempts} attempts used"
        return f"It is due in {duration(event.next_attempt_at - now)} ({used})."
    late = now - event.next_attempt_at
    if late < timedelta(seconds=2 * settings.sweep_seconds):
        return "It is due now."
    return f"It has been due for {duration(late)}: are workers and scheduler running? (`outbox doctor`)"


def _retention(ended_at: datetime, now: datetime, settings: Settings) -> str:
    left = ended_at + timedelta(hours=settings.retention_hours) - now
    return f"in {duration(left)}" if left > timedelta(0) else "by the next clean-up"


def duration(span: timedelta) -> str:
    """`250 ms`, `3 s`, `5 min 20 s`, `2 h 5 min`, `4 d`: in the largest unit that fits, and the next if that tells."""
    seconds = max(0.0, span.total_seconds())
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    unit, size, smaller, its_size = next(each for each in UNITS if seconds >= each[1])
    whole, rest = divmod(int(seconds), size)
    told = f"{whole} {unit}"
    return f"{told} {rest // its_size} {smaller}" if whole < FEW and rest >= its_size else told
