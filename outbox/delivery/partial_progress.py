"""Write the progress of an event with an ordering key before its end, while one of its destinations takes long.

An event is settled when all of its destinations have ended. Until then its row would say that no destination has it,
and the later events of its key would wait for the slowest destination everywhere. So if a batch takes long, the
destinations that have ended are written into the row meanwhile, and what waits behind the event there goes on.
"""

from __future__ import annotations

import logging

from outbox.delivery.batch import Batch, Delivery
from outbox.delivery.context import DeliveryContext
from outbox.delivery.followers import release_after
from outbox.errors import as_sentence
from outbox.storage.connection_errors import CONNECTION_ERRORS
from outbox.storage.progress import encode

logger = logging.getLogger(__name__)


def write_partial_progress(context: DeliveryContext, batch: Batch) -> None:
    """Write which destinations have ended, for events with ordering keys that other destinations still have."""
    with batch.writing:
        partly_done = batch.take_partly_done()
        if not partly_done:
            return
        try:
            with context.dialect.connection():
                for delivery in partly_done:
                    _write(context, batch, delivery)
        except CONNECTION_ERRORS as error:
            logger.warning(
                "Could not write which destinations have an event already: %s Later events of its ordering key wait "
                "until all of its destinations have ended.",
                as_sentence(error),
            )
            return
    release_after(context, batch, partly_done)


def _write(context: DeliveryContext, batch: Batch, delivery: Delivery) -> None:
    dialect, event = context.dialect, delivery.event
    progress = encode(delivery.progress, event.scheduled_at)
    dialect.run(dialect.statements.partly_settled, (progress, event.row_id, dialect.id(batch.lease_id)))
