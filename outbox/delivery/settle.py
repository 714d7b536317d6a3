"""settle: write what became of events, under the fence of their lease.

Every statement here says `AND lease_id = ?`. A worker that was paused past its lease finds nothing to write; that is
counted, and whoever took over decides.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from outbox import retry, timestamp
from outbox.database import CONNECTION_ERRORS
from outbox.delivery.batch import Batch, Delivery
from outbox.models import DELIVERED, FAILED, PENDING

if TYPE_CHECKING:
    from outbox.core import Outbox
    from outbox.database import Row

logger = logging.getLogger("outbox")

RETRY_SECONDS = 0.2
# What is due within this time this process keeps in mind; sweeps find the rest.
REMEMBERED_SECONDS = 10.0


def settle(box: Outbox, batch: Batch) -> None:
    """Write every finished delivery of the batch: the plain successes at once, the rest row by row."""
    finished = batch.take_finished()
    if not finished:
        return
    verdicts = [(delivery, retry.verdict(delivery.standings)) for delivery in finished]
    plain, rows = [], []
    for delivery, verdict in verdicts:
        if verdict.status == DELIVERED and verdict.attempts == delivery.event.claims:
            plain.append(delivery.event.id)
        else:
            rows.append(_row(box, batch, delivery, verdict))
    hit = 0
    if plain:
        parameters = (box.dialect.ids(plain), box.dialect.id(batch.lease_id))
        hit += persist(box, batch, lambda: int(box.dialect.run(box.dialect.statements.delivered, parameters).rowcount))
    if rows:
        hit += persist(box, batch, lambda: box.dialect.settle_rows(rows))
    _account(box, batch, verdicts, hit)
    _remember(box, batch, verdicts)


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
    parameters = (box.dialect.ids([event.id for event in unbegun]), box.dialect.id(batch.lease_id))
    hit = persist(box, batch, lambda: int(box.dialect.run(box.dialect.statements.released, parameters).rowcount))
    box.counters.add(released=hit, fenced=len(unbegun) - hit)
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
    progress = {name: standing.to_json() for name, standing in delivery.standings.items()}
    return (
        verdict.status,
        verdict.attempts,
        due,
        None if verdict.status == DELIVERED else json.dumps(progress),
        verdict.error,
        verdict.status == DELIVERED,
        box.dialect.id(delivery.event.id),
        box.dialect.id(batch.lease_id),
    )


def _remember(box: Outbox, batch: Batch, verdicts: list[tuple[Delivery, retry.Verdict]]) -> None:
    """What is due again before long, somebody should look at then: the next sweep may be too early, or late."""
    now = batch.clock.now()
    for _, verdict in verdicts:
        if verdict.next_attempt_at is not None:
            seconds = (verdict.next_attempt_at - now).total_seconds()
            if seconds < REMEMBERED_SECONDS:
                box.bell.ring_in(seconds)


def _account(box: Outbox, batch: Batch, verdicts: list[tuple[Delivery, retry.Verdict]], hit: int) -> None:
    statuses = [verdict.status for _, verdict in verdicts]
    fenced = len(verdicts) - hit
    box.counters.add(
        delivered=statuses.count(DELIVERED),
        retried=statuses.count(PENDING),
        failed=statuses.count(FAILED),
        fenced=fenced,
    )
    delivered_at = batch.clock.now()
    box.counters.observe(
        "latency",
        [delivery.event.waited(delivered_at) for delivery, verdict in verdicts if verdict.status == DELIVERED],
    )
    if fenced:
        logger.warning("fenced: %d of %d outcomes came after lease %s was lost", fenced, len(verdicts), batch.lease_id)
    for delivery, verdict in verdicts:
        if verdict.status == FAILED:
            logger.error("failed: %s: %s", delivery.event, verdict.error)
        elif verdict.status == PENDING and verdict.error is not None:
            untried = delivery.deferred and not delivery.begun
            logger.log(
                logging.DEBUG if untried else logging.WARNING,  # of those a gate tells once
                "put off until %s after %d of %d attempts: %s: %s",
                verdict.next_attempt_at,
                verdict.attempts,
                delivery.event.max_attempts,
                delivery.event,
                verdict.error,
            )
