"""Settle entries: write their outcomes to Redis, and log the failures.

If Redis fails before that is done, the entries are delivered again, and the inbox skips the handlers that have
processed them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from outbox.consumer.counts import Counts
from outbox.consumer.entry_outcome import EntryOutcome, Parked, Processed, Redeliver
from outbox.consumer.stream_entry import StreamEntry

if TYPE_CHECKING:
    from outbox.consumer.consumer_group import ConsumerGroup  # redis is an optional dependency

logger = logging.getLogger(__name__)


def settle(group: ConsumerGroup, outcomes: Sequence[tuple[StreamEntry, EntryOutcome]], counts: Counts) -> None:
    """Acknowledge the entries, leave them pending, or move them to the dead-letter stream; and count them."""
    processed = [entry for entry, outcome in outcomes if isinstance(outcome, Processed)]
    redelivered = [(entry, outcome) for entry, outcome in outcomes if isinstance(outcome, Redeliver)]
    parked = [(entry, outcome) for entry, outcome in outcomes if isinstance(outcome, Parked)]
    if processed or redelivered:
        group.acknowledge(processed, [(entry, _counted_deliveries(entry, outcome)) for entry, outcome in redelivered])
    counts.processed += len(processed)
    for entry, redelivery in redelivered:
        _log_redelivery(group, entry, redelivery)
    for entry, failure in parked:
        _park(group, entry, failure)
        counts.parked += 1


def _log_redelivery(group: ConsumerGroup, entry: StreamEntry, outcome: Redeliver) -> None:
    logger.log(
        logging.WARNING if outcome.begun else logging.DEBUG,
        "%s: entry %s will be delivered again, after %d deliveries: %s",
        group.stream,
        entry.id,
        _counted_deliveries(entry, outcome),
        outcome.error,
    )


def _counted_deliveries(entry: StreamEntry, outcome: Redeliver) -> int:
    """Return the number of deliveries to store with an entry that will be delivered again."""
    return entry.deliveries if outcome.counts or entry.is_exhausted else entry.deliveries - 1


def _park(group: ConsumerGroup, entry: StreamEntry, outcome: Parked) -> None:
    group.park(entry, outcome.error)
    event = "" if outcome.event is None else f", {outcome.event!r},"
    logger.error(
        "%s: entry %s%s was moved to the dead-letter stream %s: %s",
        group.stream,
        entry.id,
        event,
        group.dead_letter,
        outcome.error,
    )
