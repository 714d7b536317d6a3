"""Find the destinations that this worker does not have, and at which an event already waits.

An event may be held back at several destinations, and perhaps no single worker has all of them. Without this module
each worker would put the event off for some seconds, so that another worker claims it: again and again, until the event
in front of it is delivered. So if another worker has recorded that the event waits at a destination, a worker without
that destination lets it wait there. A worker that has the destination makes the event due.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from outbox.delivery.batch import Delivery
from outbox.delivery.context import DeliveryContext
from outbox.errors import as_sentence
from outbox.storage.connection_errors import CONNECTION_ERRORS
from outbox.storage.waiting_events import recorded_waits

logger = logging.getLogger(__name__)


def add_absent_waits(context: DeliveryContext, finished: Iterable[Delivery]) -> None:
    """Add the destinations that this worker lacks, and at which an event waits, to what the event waits for."""
    absent = [(each, name) for each in finished if each.event.is_ordered for name in _absent(context, each)]
    if not absent:
        return
    items = [(each.event.ordering_key or "", name, each.event.seq, each.event.row_id) for each, name in absent]
    try:
        with context.dialect.connection():
            found = recorded_waits(context.dialect, items)
    except CONNECTION_ERRORS as error:
        logger.warning("Could not look where events wait: %s They are put off for some seconds.", as_sentence(error))
        return
    for delivery, name in absent:
        if (delivery.event.id, name) in found:
            delivery.waits += (name,)


def _absent(context: DeliveryContext, delivery: Delivery) -> list[str]:
    """Return the destinations for which the event waits until a worker claims it that has them."""
    if not (delivery.deferred or delivery.event.has_progress):
        return []
    here = context.registry.destinations
    return [name for name, entry in delivery.progress.items() if entry.is_open and entry.absences and name not in here]
