"""settle: tell Redis what became of a round's entries, and the log what became of those that failed.

Should that fail, they come again, and the inbox knows what was done.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from outbox.consumer.counts import Counts
from outbox.consumer.entry_outcome import EntryOutcome, Parked, Processed, Redeliver
from outbox.consumer.stream_entry import StreamEntry

if TYPE_CHECKING:
    from outbox.consumer.consumer_group import ConsumerGroup

logger = logging.getLogger("outbox")


def settle(group: ConsumerGroup, fates: Sequence[tuple[StreamEntry, EntryOutcome]], tally: Counts) -> None:
    done = [entry for entry, fate in fates if isinstance(fate, Processed)]
    again = [(entry, fate) for entry, fate in fates if isinstance(fate, Redeliver)]
    parked = [(entry, fate) for entry, fate in fates if isinstance(fate, Parked)]
    if done or again:
        group.acknowledge(done, [(entry, _counted(entry, fate)) for entry, fate in again])
    tally.processed += len(done)
    for entry, put_off in again:
        _tell(group, entry, put_off)
    for entry, failure in parked:
        _park(group, entry, failure)
        tally.parked += 1


def _tell(group: ConsumerGroup, entry: StreamEntry, fate: Redeliver) -> None:
    level = logging.WARNING if fate.begun else logging.DEBUG
    counted = _counted(entry, fate)
    logger.log(level, "%s: entry %s comes again, after %d deliveries: %s", group.stream, entry.id, counted, fate.error)


def _counted(entry: StreamEntry, fate: Redeliver) -> int:
    return entry.deliveries if fate.counts or entry.spent else entry.deliveries - 1


def _park(group: ConsumerGroup, entry: StreamEntry, fate: Parked) -> None:
    group.park(entry, fate.error)
    about = "" if fate.event is None else f", {fate.event!r},"
    logger.error("%s: entry %s%s is parked in %s: %s", group.stream, entry.id, about, group.dead_letter, fate.error)
