"""Settle entries: write their outcomes to the source, and log the failures.

If the source fails before that is done, the entries are delivered again, and the inbox skips the handlers that have
processed them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from outbox.consumer.counts import Counts
from outbox.consumer.entry import Entry
from outbox.consumer.entry_outcome import EntryOutcome, Parked, Processed, Redeliver
from outbox.consumer.source import Source
from outbox.text import visible

logger = logging.getLogger(__name__)


def settle(source: Source, outcomes: Sequence[tuple[Entry, EntryOutcome]], counts: Counts) -> None:
    """Acknowledge the entries, let them be delivered again, or park them; and count them."""
    processed = [entry for entry, outcome in outcomes if isinstance(outcome, Processed)]
    redelivered = [(entry, outcome) for entry, outcome in outcomes if isinstance(outcome, Redeliver)]
    parked = [(entry, outcome) for entry, outcome in outcomes if isinstance(outcome, Parked)]
    if processed or redelivered:
        source.acknowledge(processed, [(entry, _counted_deliveries(entry, outcome)) for entry, outcome in redelivered])
    counts.processed += len(processed)
    for entry, redelivery in redelivered:
        _log_redelivery(source, entry, redelivery)
    for entry, failure in parked:
        _park(source, entry, failure)
        counts.parked += 1


def _log_redelivery(source: Source, entry: Entry, outcome: Redeliver) -> None:
    logger.log(
        logging.WARNING if outcome.begun else logging.DEBUG,
        "%s: entry %s will be delivered again, after %d deliveries: %s",
        source.name,
        entry.id,
        _counted_deliveries(entry, outcome),
        visible(outcome.error),
    )


def _counted_deliveries(entry: Entry, outcome: Redeliver) -> int:
    """Return the number of deliveries to store with an entry that will be delivered again."""
    return entry.deliveries if outcome.is_counted or entry.is_exhausted else entry.deliveries - 1


def _park(source: Source, entry: Entry, outcome: Parked) -> None:
    source.park(entry, outcome.error)
    event = "" if outcome.event is None else f", {outcome.event!r},"
    logger.error(
        "%s: entry %s%s was moved to the dead-letter %s %s: %s",
        source.name,
        entry.id,
        event,
        source.kind,
        source.dead_letter,
        visible(outcome.error),
    )
