"""settle: write what became of events, under the fence of their lease.

Every statement here says `AND lease_id = ?`. A worker that was paused past its lease finds nothing to write; that is
counted, and whoever took over decides.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from outbox import crash_points
from outbox.delivery import retry
from outbox.delivery.batch import Batch, Delivery
from outbox.events.event import Event
from outbox.storage import timestamp
from outbox.storage.connection_errors import CONNECTION_ERRORS
from outbox.storage.models import DELIVERED, FAILED, PENDING
from outbox.storage.progress import PLACEHOLDERS, RETIRED, encode
from outbox.telemetry import logs

if TYPE_CHECKING:
    from outbox.core import Outbox
    from outbox.storage.dialect import Row

logger = logging.getLogger("outbox")

Settled = tuple[Delivery, retry.Verdict]

RETRY_SECONDS = 0.2
# What is due within this time this process keeps in mind; sweeps find the rest.
REMEMBERED_SECONDS = 10.0


def settle(box: Outbox, batch: Batch) -> None:
    """Write every finished delivery of the batch; and wait for whoever is writing others of it."""
    with batch.writing:
        try:
            _write(box, batch)
        finally:
            batch.written()


def _write(box: Outbox, batch: Batch) -> None:
    """The plain successes at once, the rest row by row."""
    finished = batch.take_finished()
    if not finished:
        return
    crash_points.point(crash_points.BEFORE_SETTLE)
    plain: list[Delivery] = []
    others: list[Settled] = []
    for delivery in finished:
        verdict = retry.verdict(delivery.progress)
        usual = verdict.status == DELIVERED and verdict.attempts == delivery.event.claims
        if usual and delivery.audience is not None:
            plain.append(delivery)
        else:
            others.append((delivery, verdict))
    if plain:
        hit = persist(box, batch, lambda: _write_delivered(box, batch, plain))
        _account(box, batch, len(plain), [delivery.event for delivery in plain[:hit]])
    if others:
        hit = persist(box, batch, lambda: box.dialect.settle_rows([_row(box, batch, *each) for each in others]))
        # Should some not have been hit, which they are is not known.
        statuses = Counter(verdict.status for _, verdict in others[:hit])
        delivered = [delivery.event for delivery, verdict in others[:hit] if verdict.status == DELIVERED]
        _account(box, batch, len(others), delivered, retried=statuses[PENDING], failed=statuses[FAILED])
        _tell(others)
        _remember(box, batch, others)
    crash_points.point(crash_points.AFTER_SETTLE)


def _write_delivered(box: Outbox, batch: Batch, plain: list[Delivery]) -> int:
    """Write the successes that took one attempt; return how many of them the lease still covered."""
    ids = box.dialect.row_ids([delivery.event.row_id for delivery in plain])
    lease_id = box.dialect.id(batch.lease_id)
    # Those of one type have one audience: they were planned by the same lookup.
    audiences = {delivery.event.event_type: delivery.audience for delivery in plain}
    numbers = set(audiences.values())
    of_all, of_types = (numbers.pop(), None) if len(numbers) == 1 else (None, json.dumps(audiences))
    statement = box.dialect.statements.delivered
    return int(box.dialect.run(statement, (of_all, of_types, ids, lease_id)).rowcount)


def _audience(box: Outbox, delivery: Delivery) -> int:
    """Return the number of the names that have the event."""
    return box.audiences.id_of(
        name for name, entry in delivery.progress.items() if entry.state == DELIVERED and name not in PLACEHOLDERS
    )


def close(box: Outbox, batch: Batch) -> int:
    """The batch's time is up: give back what has not begun, settle what is finished; answers how many went back."""
    given_back = give_back(box, batch)
    settle(box, batch)
    return given_back


def give_back(box: Outbox, batch: Batch) -> int:
    """Return what has not begun, as if it had never been claimed."""
    unbegun = batch.take_unbegun()
    if not unbegun:
        return 0
    parameters = (box.dialect.row_ids([event.row_id for event in unbegun]), box.dialect.id(batch.lease_id))
    hit = persist(box, batch, lambda: int(box.dialect.run(box.dialect.statements.released, parameters).rowcount))
    _count(box, batch, released=hit, fenced=len(unbegun) - hit)
    return hit


def persist(box: Outbox, batch: Batch, write: Callable[[], int]) -> int:
    """Write through a restart of the database: the work is done already.

    Also when the lease has run out meanwhile, since nobody could claim either; if somebody has, the fence says so.
    """
    patience = box.settings.max_run_seconds + box.settings.lease_seconds
    while True:
        try:
            with box.dialect.connection():
                return write()
        except CONNECTION_ERRORS as error:
            until = batch.valid_until if box.stopping.is_set() else batch.started_at + patience
            if time.monotonic() >= until:
                raise
            logger.warning("outcomes could not be written, trying again: %s", str(error).strip())
            time.sleep(RETRY_SECONDS)


def _row(box: Outbox, batch: Batch, delivery: Delivery, verdict: retry.Verdict) -> Row:
    """The parameters of SETTLED, in its order."""
    due = None if verdict.next_attempt_at is None else timestamp.to_text(verdict.next_attempt_at)
    has_ended_well = verdict.status == DELIVERED
    retired = any(entry.state == RETIRED for entry in delivery.progress.values())
    return (
        verdict.status,
        verdict.attempts,
        due,
        None if has_ended_well and not retired else encode(delivery.progress, delivery.event.scheduled_at),
        verdict.error,
        has_ended_well,
        _audience(box, delivery) if has_ended_well else None,
        delivery.event.row_id,
        box.dialect.id(batch.lease_id),
    )


def _remember(box: Outbox, batch: Batch, verdicts: list[Settled]) -> None:
    """What is due again before long, somebody should look at then: the next sweep may be too early, or late."""
    now = batch.clock.now()
    for _, verdict in verdicts:
        if verdict.next_attempt_at is not None:
            seconds = (verdict.next_attempt_at - now).total_seconds()
            if seconds < REMEMBERED_SECONDS:
                box.notifier.notify_in(seconds)


def _account(box: Outbox, batch: Batch, answered: int, delivered: list[Event], **others: int) -> None:
    """Count what was written; of what was not, another worker tells."""
    fenced = answered - len(delivered) - sum(others.values())
    _count(box, batch, delivered=len(delivered), fenced=fenced, **others)
    since_claim = time.monotonic() - batch.started_at
    box.counters.observe("latency", [event.waited(since_claim) for event in delivered])
    if fenced:
        logger.warning(
            "fenced: %d of %d outcomes came after lease %s was lost",
            fenced,
            answered,
            batch.lease_id,
            extra=logs.fields(lease_id=batch.lease_id, fenced=fenced),
        )


def _tell(settled: list[Settled]) -> None:
    """A line for each that failed or was put off."""
    for delivery, verdict in settled:
        if verdict.status == FAILED:
            logger.error("failed: %s: %s", delivery.event, verdict.error, extra=_fields(delivery, verdict))
        elif verdict.status == PENDING and verdict.error is not None:
            level = logging.WARNING if _was_refused(delivery) else logging.DEBUG
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


def _was_refused(delivery: Delivery) -> bool:
    """Return whether a destination was tried and did not take it. What was put off untried is reported once."""
    if not delivery.deferred:
        return True
    return any(delivery.progress[name].is_open for name in delivery.begun)


def _count(box: Outbox, batch: Batch, **counts: int) -> None:
    box.counters.add(**counts)
    batch.count(**counts)


def _fields(delivery: Delivery, verdict: retry.Verdict) -> dict[str, object]:
    event = delivery.event
    unfinished = {name: entry for name, entry in delivery.progress.items() if entry.state != DELIVERED}
    return logs.fields(
        event_id=event.id,
        event_type=event.event_type,
        aggregate_type=event.aggregate_type,
        aggregate_id=event.aggregate_id,
        tenant_id=event.tenant_id,
        correlation_id=event.correlation_id,
        destinations=sorted(unfinished),
        attempts=verdict.attempts,
        max_attempts=event.max_attempts,
        next_attempt_at=verdict.next_attempt_at,
        error=verdict.error,
    )
