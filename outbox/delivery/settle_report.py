"""Count and log what was settled."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from outbox.delivery import retry
from outbox.delivery.batch import Batch, Delivery
from outbox.delivery.context import DeliveryContext
from outbox.events.event import Event
from outbox.storage.models import DELIVERED, FAILED, JOB, PENDING
from outbox.telemetry import logs

logger = logging.getLogger(__name__)

Settled = tuple[Delivery, retry.Verdict]


def count_outcomes(
    context: DeliveryContext, batch: Batch, outcomes: int, delivered: list[Event], **others: int
) -> None:
    """Count what was written. Outcomes that were fenced are reported by the worker that took the events over."""
    fenced = outcomes - len(delivered) - sum(others.values())
    add_counts(context, batch, delivered=len(delivered), fenced=fenced, **others)
    since_claim = time.monotonic() - batch.started_at
    context.counters.observe("latency", [event.waited(since_claim) for event in delivered])
    if fenced:
        logger.warning(
            "fenced: %d of %d outcomes came after lease %s was lost",
            fenced,
            outcomes,
            batch.lease_id,
            extra=logs.fields(lease_id=batch.lease_id, fenced=fenced),
        )


def add_counts(context: DeliveryContext, batch: Batch, **counts: int) -> None:
    context.counters.add(**counts)
    batch.count(**counts)


def count_jobs(context: DeliveryContext, name: str, events: Iterable[Event]) -> None:
    """Count jobs by their actor, as `jobs_enqueued` or `jobs_failed`. Events are not counted here."""
    context.counters.add_jobs(name, [event.event_type for event in events if event.kind == JOB])


def log_outcomes(settled: list[Settled]) -> None:
    """Log a line for each event that failed or was put off."""
    for delivery, verdict in settled:
        if verdict.status == FAILED:
            logger.error("failed: %s: %s", delivery.event, verdict.error, extra=_fields(delivery, verdict))
        elif verdict.status == PENDING and verdict.error is not None:
            level = logging.WARNING if _was_called_in_vain(delivery) else logging.DEBUG
            if logger.isEnabledFor(level):
                logger.log(
                    level,
                    "put off until %s after %d of %d attempts: %s: %s",
                    verdict.next_attempt_at,
                    verdict.attempts,
                    delivery.event.max_attempts,
                    delivery.event,
                    verdict.error,
                    extra=_fields(delivery, verdict),
                )


def _was_called_in_vain(delivery: Delivery) -> bool:
    """Return whether a destination was called and does not have the event.

    If no destination was called, the reason is logged once by another module, not for each event.
    """
    if not delivery.deferred:
        return True
    return any(delivery.progress[name].is_open for name in delivery.begun)


def _about(event: Event) -> dict[str, object]:
    """Return what an event is about, or which message a job holds."""
    if event.kind == JOB:
        return {"actor": event.event_type, "queue": event.aggregate_type, "message_id": event.aggregate_id}
    return {
        "event_type": event.event_type,
        "aggregate_type": event.aggregate_type,
        "aggregate_id": event.aggregate_id,
    }


def _fields(delivery: Delivery, verdict: retry.Verdict) -> dict[str, object]:
    event = delivery.event
    unfinished = {name: entry for name, entry in delivery.progress.items() if entry.state != DELIVERED}
    return logs.fields(
        event_id=event.id,
        **_about(event),
        tenant_id=event.tenant_id,
        correlation_id=event.correlation_id,
        destinations=sorted(unfinished),
        attempts=verdict.attempts,
        max_attempts=event.max_attempts,
        next_attempt_at=verdict.next_attempt_at,
        error=verdict.error,
    )
