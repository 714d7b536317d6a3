"""settle: write the outcomes of deliveries to the events' rows, under the fence of their lease.

The fence is the condition `AND lease_id = ?` of every statement here. A worker that was paused until after its lease
expired finds no row to write. That is counted as fenced; the worker that has taken the events over writes their
outcomes.

There are two functions, because outcomes are written by different threads at different times:

- `settle` writes the outcomes of the events that are finished. The thread that dispatched the batch calls it each time
  the share of one destination has ended, so that its outcomes don't wait for slower destinations (`dispatch`,
  `share_threads`). Once that thread no longer waits, a share that is still running calls it itself (`share`).
- `close` also gives back the events that have not begun. It is called when all shares of the batch have ended or, by a
  thread of the lease keeper, when the batch has taken its time slice (`deliver`).
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Callable

from outbox import crash_points
from outbox.delivery import retry
from outbox.delivery.batch import Batch, Delivery
from outbox.delivery.context import DeliveryContext
from outbox.delivery.settle_report import Settled, add_counts, count_jobs, count_outcomes, log_outcomes
from outbox.storage import timestamp
from outbox.storage.connection_errors import CONNECTION_ERRORS
from outbox.storage.dialect import Row
from outbox.storage.models import DELIVERED, FAILED, JOB, PENDING
from outbox.storage.progress import PLACEHOLDERS, RETIRED, encode

logger = logging.getLogger(__name__)

RETRY_SECONDS = 0.2
# This process sets a timer for an event that is due again within this time. Sweeps find the other events.
TIMER_SECONDS = 10.0


def settle(context: DeliveryContext, batch: Batch) -> None:
    """Write the outcomes of the batch's finished deliveries, after any other thread that is writing some of them."""
    with batch.writing:
        try:
            _write(context, batch)
        finally:
            batch.written()


def close(context: DeliveryContext, batch: Batch) -> int:
    """Give back the events that have not begun, and settle those that are finished; return how many went back."""
    given_back = give_back(context, batch)
    settle(context, batch)
    return given_back


def give_back(context: DeliveryContext, batch: Batch) -> int:
    """Release the events that have not begun, as if they had never been claimed; return how many."""
    unbegun = batch.take_unbegun()
    if not unbegun:
        return 0
    dialect = context.dialect
    parameters = (dialect.row_ids([event.row_id for event in unbegun]), dialect.id(batch.lease_id))
    updated = persist(context, batch, lambda: int(dialect.run(dialect.statements.released, parameters).rowcount))
    add_counts(context, batch, released=updated, fenced=len(unbegun) - updated)
    return updated


def _write(context: DeliveryContext, batch: Batch) -> None:
    """Write the plain successes with one statement, and the other outcomes row by row."""
    finished = batch.take_finished()
    if not finished:
        return
    crash_points.point(crash_points.BEFORE_SETTLE)
    plain: list[Delivery] = []
    others: list[Settled] = []
    for delivery in finished:
        verdict = retry.verdict(delivery.progress)
        # The claim has already counted the attempt, so only the status of a plain success has to be written.
        counted = verdict.status == DELIVERED and verdict.attempts == delivery.event.claims
        if counted and delivery.audience is not None:
            plain.append(delivery)
        else:
            others.append((delivery, verdict))
    for kind in {delivery.event.kind for delivery in plain}:
        _write_plain(context, batch, [delivery for delivery in plain if delivery.event.kind == kind], kind)
    if others:
        # `_row` is called inside `persist`, because it may read the id of an audience from the database.
        updated = persist(
            context, batch, lambda: context.dialect.settle_rows([_row(context, batch, *each) for each in others])
        )
        # If fewer rows were updated, it is not known which: the counts take the first ones.
        statuses = Counter(verdict.status for _, verdict in others[:updated])
        delivered = [delivery.event for delivery, verdict in others[:updated] if verdict.status == DELIVERED]
        count_outcomes(context, batch, len(others), delivered, retried=statuses[PENDING], failed=statuses[FAILED])
        count_jobs(context, "jobs_enqueued", delivered)
        failed = [delivery.event for delivery, verdict in others[:updated] if verdict.status == FAILED]
        count_jobs(context, "jobs_failed", failed)
        log_outcomes(others)
        _set_timers(context, batch, others)
    crash_points.point(crash_points.AFTER_SETTLE)


def _write_plain(context: DeliveryContext, batch: Batch, plain: list[Delivery], kind: str) -> None:
    """Write and count the plain successes of one kind. (A job may have the name of an event type.)"""
    updated = persist(context, batch, lambda: _write_delivered(context, batch, plain))
    delivered = [delivery.event for delivery in plain[:updated]]
    count_outcomes(context, batch, len(plain), delivered)
    if kind == JOB:
        count_jobs(context, "jobs_enqueued", delivered)


def _write_delivered(context: DeliveryContext, batch: Batch, plain: list[Delivery]) -> int:
    """Write the plain successes; return how many of them the lease still covered."""
    dialect = context.dialect
    ids = dialect.row_ids([delivery.event.row_id for delivery in plain])
    lease_id = dialect.id(batch.lease_id)
    # Events of one type have the same audience here, because it was looked up once for the batch.
    audiences = {delivery.event.event_type: delivery.audience for delivery in plain}
    numbers = set(audiences.values())
    of_all, of_types = (numbers.pop(), None) if len(numbers) == 1 else (None, json.dumps(audiences))
    return int(dialect.run(dialect.statements.delivered, (of_all, of_types, ids, lease_id)).rowcount)


def _row(context: DeliveryContext, batch: Batch, delivery: Delivery, verdict: retry.Verdict) -> Row:
    """Return the parameters of the statement `settled`, in its order."""
    due = None if verdict.next_attempt_at is None else timestamp.to_text(verdict.next_attempt_at)
    is_delivered = verdict.status == DELIVERED
    has_retired = any(entry.state == RETIRED for entry in delivery.progress.values())
    return (
        verdict.status,
        verdict.attempts,
        due,
        None if is_delivered and not has_retired else encode(delivery.progress, delivery.event.scheduled_at),
        verdict.error,
        is_delivered,
        _audience(context, delivery) if is_delivered else None,
        delivery.event.row_id,
        context.dialect.id(batch.lease_id),
    )


def _audience(context: DeliveryContext, delivery: Delivery) -> int:
    """Return the id of the audience: the destinations that have the event."""
    return context.audiences.id_of(
        name for name, entry in delivery.progress.items() if entry.state == DELIVERED and name not in PLACEHOLDERS
    )


def persist(context: DeliveryContext, batch: Batch, write: Callable[[], int]) -> int:
    """Call `write`, and again while the database can't be reached, so that outcomes survive a restart of the database.

    This also continues after the lease has expired, because other workers could most likely not claim the events
    either. If one could, the fence keeps this worker from writing.
    """
    patience = context.settings.max_run_seconds + context.settings.lease_seconds
    while True:
        try:
            with context.dialect.connection():
                return write()
        except CONNECTION_ERRORS as error:
            until = batch.valid_until if context.stopping.is_set() else batch.started_at + patience
            if time.monotonic() >= until:
                raise
            logger.warning("outcomes could not be written, trying again: %s", str(error).strip())
            time.sleep(RETRY_SECONDS)


def _set_timers(context: DeliveryContext, batch: Batch, settled: list[Settled]) -> None:
    """Notify a worker when events are due again, if that is soon: the next sweep may be too early, or much later."""
    now = batch.clock.now()
    for _, verdict in settled:
        if verdict.next_attempt_at is not None:
            seconds = (verdict.next_attempt_at - now).total_seconds()
            if seconds < TIMER_SECONDS:
                context.notifier.notify_in(seconds)
