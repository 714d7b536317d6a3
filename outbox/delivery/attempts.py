"""Write the attempts of a batch to their history: one statement for all of them, after the outcomes are settled.

The history is for operators, and no delivery depends on it: if it can't be written, deliveries go on without.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Collection
from datetime import datetime, timedelta

import peewee

from outbox.delivery.batch import Batch, Delivery
from outbox.delivery.context import DeliveryContext
from outbox.destinations.outcome import Delivered, Outcome
from outbox.errors import OutboxError, as_sentence
from outbox.storage.attempts import ALL, ERROR_LENGTH, MOST_PER_EVENT, NONE, Tried, add_attempts
from outbox.text import clean_error, shorten


def tried(context: DeliveryContext, batch: Batch, name: str, outcome: Outcome, seconds: float) -> Tried | None:
    """Return the attempt that has just ended, or None if OUTBOX_ATTEMPTS keeps none that ended like this."""
    kept = context.settings.attempts
    if isinstance(outcome, Delivered):
        return Tried(name, _began(batch, seconds), seconds, "delivered", None, None) if kept == ALL else None
    if kept == NONE:
        return None
    error = shorten(clean_error(outcome.error), ERROR_LENGTH)
    return Tried(name, _began(batch, seconds), seconds, type(outcome).__name__.lower(), outcome.http_status, error)


def write_attempts(context: DeliveryContext, deliveries: Collection[Delivery]) -> None:
    """Write the attempts of these deliveries."""
    attempts = [(delivery.event.row_id, each) for delivery in deliveries for each in delivery.tried]
    # An event that was tried before has something in `progress`.
    are_first = not any(delivery.event.has_progress or len(delivery.tried) > MOST_PER_EVENT for delivery in deliveries)
    try:
        with context.dialect.connection():
            add_attempts(context.dialect, attempts, worker_name(), are_first=are_first)
    except (peewee.PeeweeException, OutboxError) as error:
        context.warn_once(
            f"Could not write the history of attempts: {as_sentence(error)} Deliveries go on without it. If the role "
            "of the workers lacks rights on the table, grant them (docs/how-to/permissions.md), or set "
            "OUTBOX_ATTEMPTS=none."
        )


def worker_name() -> str:
    """Return the host and the process, as `outbox status` shows them."""
    return f"{socket.gethostname()[:200]}:{os.getpid()}"


def _began(batch: Batch, seconds: float) -> datetime:
    return batch.clock.now() - timedelta(seconds=seconds)
