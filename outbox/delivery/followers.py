"""Make events due that waited behind an earlier event of their ordering key.

`settle` calls `release_after` when events of a key have ended at a destination, and also when it has parked some: the
event that they wait behind may have ended while they were being parked, and its worker has then not seen them. A worker
that crashed in between, an event that was deleted, or a destination that was retired leave events that nothing
releases. `release_overlooked` finds them: a drain calls it every few seconds.

For each key and destination, twice as many events are released as have just ended there, but at most one batch. When
these have ended, the next ones are released. So if a destination refuses an event now and then, few events are released
too early: their batch stops at the first refused event, and the others are parked again.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from datetime import timedelta

from outbox.delivery.batch import Batch, Delivery
from outbox.delivery.context import DeliveryContext
from outbox.delivery.key_order import key_of
from outbox.delivery.ordering import EarlierOfKeys
from outbox.delivery.overlooked_scan import BEGINNING, PAIRS_PER_LOOK
from outbox.destinations.order_policy import is_ordered, skips_failed
from outbox.destinations.recorded_destinations import Snapshot
from outbox.errors import as_sentence
from outbox.storage.connection_errors import CONNECTION_ERRORS
from outbox.storage.models import DELIVERED, FAILED
from outbox.storage.progress import RETIRED, ProgressEntry
from outbox.storage.waiting_events import Pair, any_waits_since, first_waiting, release, unpark, waiting_pairs

logger = logging.getLogger(__name__)

# How long the transaction that parks events may take, so that a batch which looked before it was committed still finds
# its rows by their time. If it takes longer, `release_overlooked` finds the events.
PARKED_WITHIN = timedelta(seconds=10)
# How many pairs of key and destination one statement reads.
PAIRS_READ = 200


def release_after(context: DeliveryContext, batch: Batch, settled: Collection[Delivery]) -> None:
    """Make the next events due, for the keys and destinations of these events; notify a worker if there are any."""
    try:
        with context.dialect.connection():
            affected = _with_followers(context, batch, settled)
            ended = Counter(pair for delivery in affected for pair in _pairs_of(context, delivery))
            if not ended:
                return
            first, version = first_waiting(context.dialect, ended)
            released = _release_free(context, first, ended)
            # They were parked for the destinations that there were when they were claimed.
            outdated = [each.event for each in affected if each.waits and each.event.destinations_version != version]
            if outdated:
                released += unpark(context.dialect, [event.row_id for event in outdated])
    except CONNECTION_ERRORS as error:
        logger.warning(
            "Could not look for events that waited behind those just settled: %s They are found within some seconds.",
            as_sentence(error),
        )
        return
    if released:
        batch.has_released = True
        context.notifier.notify()


def _with_followers(context: DeliveryContext, batch: Batch, settled: Collection[Delivery]) -> Collection[Delivery]:
    """Return the events behind which others may wait: mostly none, although many events may wait behind others.

    When the batch looked, no event waited for the other keys. Unless some were parked since then, none does now.
    """
    if any_waits_since(context.dialect, batch.claimed_at - PARKED_WITHIN):
        return settled
    return [each for each in settled if each.waits or each.event.ordering_key in batch.keys_with_waiting]


def _pairs_of(context: DeliveryContext, delivery: Delivery) -> Iterator[Pair]:
    """Yield the key with each destination at which the event has ended, or at which it waits."""
    key = key_of(delivery)
    if key is None:
        return
    for name, entry in delivery.progress.items():
        if name in delivery.waits or _has_ended(context, name, entry):
            yield key, name


def _has_ended(context: DeliveryContext, name: str, entry: ProgressEntry) -> bool:
    if entry.state == FAILED:
        destination = context.registry.destinations.get(name)
        return destination is not None and skips_failed(destination)
    return entry.state in (DELIVERED, RETIRED)


def _release_free(context: DeliveryContext, first: Mapping[Pair, int], ended: Mapping[Pair, int] | None = None) -> int:
    """Release the next events of each pair whose first waiting event is no longer held back.

    `ended` says how many events of each pair have just ended there; None, if that is not known.
    """
    if not first:
        return 0
    below: dict[str, int] = {}
    for (key, _), seq in first.items():
        below[key] = max(seq, below.get(key, seq))
    recorded = context.audiences.recorded
    earlier = EarlierOfKeys(context, below, recorded)
    free = [pair for pair, seq in first.items() if _is_free(context, earlier, recorded, pair, seq)]
    if not free:
        return 0
    most = max(1, context.batch_size.current // len(free))
    return release(context.dialect, {pair: most if ended is None else min(most, 2 * ended[pair]) for pair in free})


def _is_free(context: DeliveryContext, earlier: EarlierOfKeys, recorded: Snapshot, pair: Pair, seq: int) -> bool:
    """Return whether no event holds back the event `seq`, the first that waits, at the destination of the pair.

    Events of a destination that is retired or unknown are released, so that they end. Those of a destination that only
    other workers have are left to them: they know whether it keeps the order.
    """
    key, name = pair
    if recorded.is_retired(name):
        return True
    destination = context.registry.destinations.get(name)
    if destination is None:
        return name not in recorded.by_name
    return not is_ordered(destination) or earlier.held_back(key, destination, seq) is None


def release_overlooked(context: DeliveryContext) -> int:
    """Release events that wait although nothing holds them back; return how many are due now.

    It reads a limited number of keys; the next call continues there.
    """
    scan, released = context.overlooked_scan, 0
    position, read = scan.position, 0
    with context.dialect.connection():
        while read < PAIRS_PER_LOOK and not context.stopping.is_set():
            count, position = _release_from(context, position)
            released += count
            read += PAIRS_READ
            if position == BEGINNING:
                break
    scan.read_up_to(position)
    return released


def release_all_overlooked(context: DeliveryContext) -> int:
    """Release all events that wait although nothing holds them back; return how many are due now."""
    released, position = _release_from(context, BEGINNING)
    while position != BEGINNING and not context.stopping.is_set():
        count, position = _release_from(context, position)
        released += count
    return released


def _release_from(context: DeliveryContext, position: Pair) -> tuple[int, Pair]:
    """Read some pairs, and release what is free; return how many events are due now, and where to go on."""
    with context.dialect.connection():
        pairs = waiting_pairs(context.dialect, position, PAIRS_READ)
        released = _release_free(context, first_waiting(context.dialect, pairs)[0]) if pairs else 0
    return released, pairs[-1] if len(pairs) == PAIRS_READ else BEGINNING
