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
from collections.abc import Callable, Iterable

from outbox import crash_points
from outbox.delivery import retry
from outbox.delivery.absent_waits import add_absent_waits
from outbox.delivery.attempts import write_attempts
from outbox.delivery.batch import Batch, Delivery
from outbox.delivery.context import DeliveryContext
from outbox.delivery.failure_hooks import failures_of
from outbox.delivery.followers import release_after
from outbox.delivery.settle_report import (
    Settled,
    add_counts,
    count_failed_by_name,
    count_outcomes,
    log_outcomes,
    was_called_in_vain,
)
from outbox.destinations.order_policy import is_ordered, skips_failed
from outbox.destinations.protocol import Destination
from outbox.errors import as_sentence
from outbox.storage import timestamp
from outbox.storage.connection_errors import CONNECTION_ERRORS
from outbox.storage.dialect import Row
from outbox.storage.models import DELIVERED, FAILED, HOLDS, PENDING, WAITS
from outbox.storage.progress import NEW, NO_DESTINATION, PAUSED, PLACEHOLDERS, RETIRED, encode
from outbox.storage.waiting_events import add_waiting

logger = logging.getLogger(__name__)

RETRY_SECONDS = 0.2
# The names of two counts of events that wait for another attempt.
RETRIED, PUT_OFF = "retried", "put_off"
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
    """Write plain successes, events that only wait, and the other outcomes, with a statement for each of the three."""
    finished = batch.take_finished()
    if not finished:
        return
    if crash_points.point is not None:
        crash_points.point(crash_points.BEFORE_SETTLE)
    if batch.has_keys:
        add_absent_waits(context, finished)
    plain, parked, others = _by_statement(finished)
    for deliveries in plain.values():
        _write_plain(context, batch, deliveries)
    if parked:
        updated = persist(context, batch, lambda: _park(context, batch, parked))
        add_counts(context, batch, held_back=updated, fenced=len(parked) - updated)
    if others:
        _settle_others(context, batch, others)
    if crash_points.point is not None:
        crash_points.point(crash_points.AFTER_SETTLE)
    if with_attempts := [delivery for delivery in finished if delivery.tried]:
        write_attempts(context, with_attempts)
    if batch.has_keys:
        context.settled.send()
        release_after(context, batch, [delivery for delivery in finished if delivery.event.is_ordered])


def _by_statement(finished: list[Delivery]) -> tuple[dict[str, list[Delivery]], list[Delivery], list[Settled]]:
    """Return the plain successes by kind, the events that only wait, and the others with what is written for them.

    (The kinds are apart because a job may have the name of an event type.)
    """
    plain: dict[str, list[Delivery]] = {}
    parked: list[Delivery] = []
    others: list[Settled] = []
    for delivery in finished:
        if delivery.waits and _only_waits(delivery):
            parked.append(delivery)
            continue
        update = retry.row_update(delivery.progress, delivery.waits)
        # The claim has already counted the attempt, so only the status of a plain success has to be written.
        counted = update.status == DELIVERED and update.attempts == delivery.event.claims
        if counted and delivery.audience is not None:
            plain.setdefault(delivery.event.kind, []).append(delivery)
        else:
            others.append((delivery, update))
    return plain, parked, others


def _settle_others(context: DeliveryContext, batch: Batch, others: list[Settled]) -> None:
    """Write the events that failed, are tried again, or are delivered after more than one attempt; count and log."""
    updated = persist(context, batch, lambda: _write_others(context, batch, others))
    # If fewer rows were updated, it is not known which: the counts take the first ones.
    statuses = Counter(_outcome(*each) for each in others[:updated])
    delivered = [delivery.event for delivery, update in others[:updated] if update.status == DELIVERED]
    counts = {name: statuses[name] for name in (RETRIED, PUT_OFF, FAILED)}
    count_outcomes(context, batch, len(others), delivered, **counts)
    failed = [delivery.event for delivery, update in others[:updated] if update.status == FAILED]
    count_failed_by_name(context, failed)
    log_outcomes(others)
    _report_failures(context, others)
    _set_timers(context, batch, others)
    if context.audiences.recorded.controls.pauses:
        persist(context, batch, lambda: _make_resumed_due(context, batch, others))


def _outcome(delivery: Delivery, update: retry.RowUpdate) -> str:
    """Return the name of the count of an event that was settled: one that was not tried was put off, not retried."""
    if update.status != PENDING:
        return update.status
    return RETRIED if was_called_in_vain(delivery) else PUT_OFF


def _report_failures(context: DeliveryContext, settled: list[Settled]) -> None:
    """Call the hooks of `outbox.on_failure`, and forget the exceptions: their frames hold what they refer to."""
    hooks = context.registry.failure_hooks
    for delivery, _ in settled:
        if hooks:
            context.failure_hooks.report(hooks, list(failures_of(delivery)))
        delivery.exceptions = None


def _only_waits(delivery: Delivery) -> bool:
    """Return whether nothing has changed for the event but that it waits: then its row needs no progress."""
    return not delivery.event.has_progress and all(entry is NEW for entry in delivery.progress.values())


def _park(context: DeliveryContext, batch: Batch, parked: list[Delivery]) -> int:
    """Write that the events wait behind others, and are not due until they are released; return how many rows."""
    dialect = context.dialect
    ids = dialect.row_ids([delivery.event.row_id for delivery in parked])
    with dialect.atomic():
        updated = int(dialect.run(dialect.statements.parked, (ids, dialect.id(batch.lease_id))).rowcount)
        add_waiting(dialect, _waits(parked))
    return updated


def _waits(deliveries: Iterable[Delivery]) -> list[tuple[str, str]]:
    return [(delivery.event.row_id, name) for delivery in deliveries for name in delivery.waits]


def _write_others(context: DeliveryContext, batch: Batch, others: list[Settled]) -> int:
    """Write each row; return how many of them the lease still covered."""
    dialect = context.dialect
    # This may read the ids of audiences from the database.
    rows = [_row(context, batch, *each) for each in others]
    waits = _waits(delivery for delivery, _ in others)
    if not waits:
        return dialect.settle_rows(rows)
    with dialect.atomic():
        updated = dialect.settle_rows(rows)
        add_waiting(dialect, waits)
    return updated


def _write_plain(context: DeliveryContext, batch: Batch, plain: list[Delivery]) -> None:
    """Write and count the plain successes of one kind."""
    updated = persist(context, batch, lambda: _write_delivered(context, batch, plain))
    delivered = [delivery.event for delivery in plain[:updated]]
    count_outcomes(context, batch, len(plain), delivered)


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


def _row(context: DeliveryContext, batch: Batch, delivery: Delivery, update: retry.RowUpdate) -> Row:
    """Return the parameters of SETTLED_SQLITE, in its order."""
    due = None if update.next_attempt_at is None else timestamp.to_text(update.next_attempt_at)
    is_delivered = update.status == DELIVERED
    has_retired = any(entry.state == RETIRED for entry in delivery.progress.values())
    return (
        update.status,
        update.attempts,
        due,
        None if is_delivered and not has_retired else encode(delivery.progress, delivery.event.scheduled_at),
        update.error,
        is_delivered,
        _audience(context, delivery) if is_delivered else None,
        _order_state(context, delivery, update) if delivery.event.is_ordered else None,
        delivery.event.row_id,
        context.dialect.id(batch.lease_id),
    )


def _audience(context: DeliveryContext, delivery: Delivery) -> int:
    """Return the id of the audience: the destinations that have the event."""
    return context.audiences.id_of(
        name for name, entry in delivery.progress.items() if entry.state == DELIVERED and name not in PLACEHOLDERS
    )


def _order_state(context: DeliveryContext, delivery: Delivery, update: retry.RowUpdate) -> str | None:
    """Return whether the event waits, holds back the later events of its ordering key, or does neither."""
    only_waits = update.status == PENDING and update.next_attempt_at == timestamp.LATEST
    for name, entry in delivery.progress.items():
        destination = context.registry.destinations.get(name)
        if destination is not None and not is_ordered(destination):
            continue
        if name == NO_DESTINATION:
            # The event could not be planned: it has failed at every destination that wants it.
            blocks = any(map(_blocks, context.registry.wanting(delivery.event.event_type)))
        else:
            # The policy of a destination that this process does not have is not known: it may hold others back.
            blocks = destination is None or _blocks(destination)
        # Where it has failed it holds back the later events, also while it waits at another destination.
        if (entry.state == FAILED and blocks and not entry.skipped) or (entry.is_open and not only_waits):
            return HOLDS
    return WAITS if only_waits else None


def _blocks(destination: Destination) -> bool:
    """Return whether an event that has failed at the destination holds back later events of its ordering key."""
    return is_ordered(destination) and not skips_failed(destination)


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
            logger.warning("outcomes could not be written, trying again: %s", as_sentence(error))
            time.sleep(RETRY_SECONDS)


def _make_resumed_due(context: DeliveryContext, batch: Batch, settled: list[Settled]) -> int:
    """Make events due that were put off for a pause which an operator has ended since they were claimed.

    Resuming makes due what it finds put off, and may not have found these.
    """
    paused = {
        delivery.event.row_id: name
        for delivery, update in settled
        if update.status == PENDING
        for name, entry in delivery.progress.items()
        if entry.reason == PAUSED and entry.is_open
    }
    if not paused:
        return 0
    controls, now = context.audiences.read_again().controls, batch.clock.now()
    ids = [row_id for row_id, name in paused.items() if controls.pause_of(name, now) is None]
    if ids:
        context.dialect.run(context.dialect.statements.unpause, (context.dialect.row_ids(ids),))
        context.notifier.notify()
    return len(ids)


def _set_timers(context: DeliveryContext, batch: Batch, settled: list[Settled]) -> None:
    """Notify a worker when events are due again, if that is soon: the next sweep may be too early, or much later."""
    now = batch.clock.now()
    for _, update in settled:
        if update.next_attempt_at is not None:
            seconds = (update.next_attempt_at - now).total_seconds()
            if seconds < TIMER_SECONDS:
                context.notifier.notify_in(seconds)
