"""Count and log what was settled."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence

from outbox.delivery import retry
from outbox.delivery.batch import Batch, Delivery
from outbox.delivery.context import DeliveryContext
from outbox.events.event import Event
from outbox.storage.models import DELIVERED, EVENT, FAILED, JOB, PENDING
from outbox.storage.progress import NEWER_VERSION
from outbox.telemetry import logs
from outbox.text import visible

logger = logging.getLogger(__name__)

# How many of the events of a batch that were put off for the same reason have a line of their own in the log.
MOST_LINES = 10

Settled = tuple[Delivery, retry.RowUpdate]


def count_outcomes(
    context: DeliveryContext, batch: Batch, outcomes: int, delivered: list[Event], **others: int
) -> None:
    """Count what was written. Outcomes that were fenced are reported by the worker that took the events over."""
    fenced = outcomes - len(delivered) - sum(others.values())
    add_counts(context, batch, delivered=len(delivered), fenced=fenced, **others)
    since_claim = time.monotonic() - batch.started_at
    times = [event.waited(since_claim) for event in delivered]
    context.counters.observe("latency", times)
    _count_delivered_by_name(context, delivered, times)
    if fenced:
        logger.warning(
            "fenced: %d of %d outcomes were not written, since the lease %s was lost: another worker has these events",
            fenced,
            outcomes,
            batch.lease_id,
            extra=logs.fields(lease_id=batch.lease_id, fenced=fenced),
        )


def add_counts(context: DeliveryContext, batch: Batch, **counts: int) -> None:
    context.counters.add(**counts)
    batch.count(**counts)


def _count_delivered_by_name(context: DeliveryContext, events: Sequence[Event], times: Sequence[float]) -> None:
    """Count events by their type, with the times that they took, and jobs by their actor."""
    if all(event.kind == EVENT for event in events):
        context.counters.observe_types([event.event_type for event in events], times)
        return
    timed = [(event.event_type, seconds) for event, seconds in zip(events, times, strict=True) if event.kind == EVENT]
    context.counters.observe_types([name for name, _ in timed], [seconds for _, seconds in timed])
    actors = [event.event_type for event in events if event.kind == JOB]
    if actors:
        context.counters.add_jobs("jobs_enqueued", actors)


def count_failed_by_name(context: DeliveryContext, events: Sequence[Event]) -> None:
    """Count failed jobs by their actor, and failed events by their type."""
    actors = [event.event_type for event in events if event.kind == JOB]
    if actors:
        context.counters.add_jobs("jobs_failed", actors)
    context.counters.add_types("types_failed", [event.event_type for event in events if event.kind == EVENT])


def log_outcomes(settled: list[Settled]) -> None:
    """Log a line for each event that failed, and for those that were put off.

    Of the events that were put off for the same reason, only the first ones have lines of their own. Writing a line
    takes as long as everything else that is done for the event, and during an outage there are thousands in a second.
    """
    for delivery, update in settled:
        if update.status == FAILED:
            error = None if update.error is None else visible(update.error)
            logger.error("failed: %s: %s", delivery.event, error, extra=_fields(delivery, update))
    put_off = [each for each in settled if each[1].status == PENDING and each[1].error is not None]
    for level in (logging.WARNING, logging.DEBUG):
        if logger.isEnabledFor(level):
            _log_put_off([each for each in put_off if _level(each[0]) == level], level)


def _log_put_off(put_off: list[Settled], level: int) -> None:
    counts: Counter[str | None] = Counter()
    for delivery, update in put_off:
        counts[update.error] += 1
        if counts[update.error] <= MOST_LINES:
            logger.log(
                level,
                "put off until %s after %d of %d attempts: %s: %s",
                update.next_attempt_at,
                update.attempts,
                delivery.event.max_attempts,
                delivery.event,
                visible(str(update.error)),
                extra=_fields(delivery, update),
            )
    for error, count in counts.items():
        if count > MOST_LINES:
            more = count - MOST_LINES
            extra = logs.fields(events=more, error=error)
            logger.log(
                level, "put off likewise: %d more events of this batch: %s", more, visible(str(error)), extra=extra
            )


def _level(delivery: Delivery) -> int:
    return logging.WARNING if was_called_in_vain(delivery) else logging.DEBUG


def was_called_in_vain(delivery: Delivery) -> bool:
    """Return whether a destination was called and does not have the event.

    If no destination was called, the reason is logged once by another module, not for each event.
    """
    entries = [entry for name in delivery.begun if (entry := delivery.progress[name]).is_open]
    if entries and all(entry.reason == NEWER_VERSION for entry in entries):
        return False
    return bool(entries) or not delivery.deferred


def _about(event: Event) -> dict[str, object]:
    """Return what an event is about, or which message a job holds."""
    if event.kind == JOB:
        return {"actor": event.event_type, "queue": event.aggregate_type, "message_id": event.aggregate_id}
    return {
        "event_type": event.event_type,
        "aggregate_type": event.aggregate_type,
        "aggregate_id": event.aggregate_id,
    }


def _fields(delivery: Delivery, update: retry.RowUpdate) -> dict[str, object]:
    event = delivery.event
    unfinished = {name: entry for name, entry in delivery.progress.items() if entry.state != DELIVERED}
    return logs.fields(
        event_id=event.id,
        **_about(event),
        tenant_id=event.tenant_id,
        correlation_id=event.correlation_id,
        destinations=sorted(unfinished),
        attempts=update.attempts,
        max_attempts=event.max_attempts,
        next_attempt_at=update.next_attempt_at,
        error=update.error,
    )
