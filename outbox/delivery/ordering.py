"""Keep the order of an ordering key: an event waits until the earlier events of its key have ended at a destination.

Order is per destination and key. If a batch has events with ordering keys, `dispatch` asks `KeyedPlans` which of them
their destinations may get now. An event is held back by an earlier event of its key that another worker has, that waits
for a retry, or that is held back itself. `share` passes a destination the events of one key one after another.

The column `order_state` (`storage/models.py`) says whether an event holds others back, or waits:

- It *holds* the later events back, until it has ended: delivered, retired, or failed at a destination that skips
  failures.
- It *waits* if all that is left to do for it must wait. Then it is *parked*: it is not due, and costs no claims.

For each destination at which an event waits, parked or not, the table `outbox_waiting` has a row. `followers` makes the
event due again. So an earlier event which a destination does not have is always found: it holds, or it has such a row.
Both change in one transaction, and one statement reads both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum, auto

from outbox.delivery.batch import Batch, Delivery
from outbox.delivery.context import DeliveryContext
from outbox.destinations.event_filter import is_wanted
from outbox.destinations.order_policy import OrderedDestination, is_ordered, skips_failed
from outbox.destinations.protocol import Destination
from outbox.destinations.recorded_destinations import Snapshot
from outbox.storage.models import DELIVERED, FAILED
from outbox.storage.progress import OTHER_DESTINATIONS, PLACEHOLDERS, RETIRED, ProgressEntry, parse
from outbox.storage.waiting_events import (
    HOLDERS_READ,
    MORE_HOLDERS_READ,
    NO_LEASE,
    EarlierEvents,
    Holder,
    read_earlier,
)

Plan = tuple[Delivery, Sequence[Destination]]

# How long a batch waits for events that other batches are delivering, and how long ago these may have been claimed.
LONGEST_WAIT_SECONDS = 0.2


class Held(Enum):
    """For how long an event is held back at a destination."""

    # A worker has just claimed the event in front, or is claiming it: most likely it ends within milliseconds.
    BRIEFLY = auto()
    # The event in front waits for a retry, has failed, or waits itself.
    LONGER = auto()


class Undecided:
    """An event of a batch, and its destinations about which nothing is decided yet."""

    def __init__(self, delivery: Delivery, destinations: Sequence[Destination]) -> None:
        self.delivery = delivery
        self.destinations = list(destinations)


class KeyedPlans:
    """The events of a batch that have ordering keys: decides which destinations get them now.

    A destination that an earlier event holds back may be left undecided if a worker is delivering that event right now:
    most events are delivered within milliseconds, and parking an event costs more than to look again.
    """

    def __init__(self, context: DeliveryContext, batch: Batch, plans: Iterable[Plan], recorded: Snapshot) -> None:
        self._context = context
        self._batch = batch
        self._recorded = recorded
        # All events of the batch that have a key, in the order of their numbers.
        self._by_key: dict[str, list[Undecided]] = {}
        for delivery, destinations in sorted(plans, key=lambda plan: plan[0].event.seq):
            self._by_key.setdefault(delivery.event.ordering_key or "", []).append(Undecided(delivery, destinations))
        # These are not looked up. If their events end all the same, others may wait behind them.
        batch.keys_with_waiting |= self._by_key.keys() - self._undecided().keys()

    @property
    def has_undecided(self) -> bool:
        return bool(self._undecided())

    def _undecided(self) -> dict[str, list[Undecided]]:
        return {key: events for key, events in self._by_key.items() if any(each.destinations for each in events)}

    def decide(self, *, may_wait: bool) -> list[Plan]:
        """Look up the earlier events; return the events, each with the destinations that may get it now.

        The others are recorded as waiting, except for those that are left undecided if `may_wait`.
        """
        undecided = self._undecided()
        if not undecided:
            return []
        below = {key: events[-1].delivery.event.seq for key, events in undecided.items()}
        earlier = EarlierOfKeys(self._context, below, self._recorded, self._batch)
        self._batch.keys_with_waiting |= earlier.keys_with_waiting
        return [plan for key, events in undecided.items() for plan in self._decide_key(key, events, earlier, may_wait)]

    def _decide_key(
        self, key: str, events: Sequence[Undecided], earlier: EarlierOfKeys, may_wait: bool
    ) -> Iterator[Plan]:
        if len(events) == 1 and not earlier.has_any(key):  # the usual case
            (only,) = events
            ready, only.destinations = only.destinations, []
            yield self._continue(only.delivery, ready)
            return
        # By the name of a destination that lacks an earlier event of this batch.
        stopped: dict[str, Held] = {}
        for each in events:
            delivery, ready, left = each.delivery, [], []
            for destination in each.destinations:
                name = destination.name
                held = stopped.get(name) or earlier.held_back(key, destination, delivery.event.seq)
                if held is None or not is_ordered(destination):
                    ready.append(destination)
                elif held is Held.BRIEFLY and may_wait:
                    left.append(destination)
                else:
                    self._batch.wait_behind(delivery, name)
            each.destinations = left
            self._stop_at(stopped, delivery, ready, left)
            if ready:
                yield self._continue(delivery, ready)

    def _continue(self, delivery: Delivery, destinations: list[Destination]) -> Plan:
        """Return the plan for an event that goes to these destinations now, and may have waited there before."""
        if delivery.event.has_progress:
            now = self._batch.clock.now()
            for destination in destinations:
                name = destination.name
                delivery.progress[name] = delivery.progress[name].no_longer_held_back(now)
        return delivery, destinations

    def _stop_at(
        self,
        stopped: dict[str, Held],
        delivery: Delivery,
        ready: Sequence[Destination],
        left: Sequence[Destination],
    ) -> None:
        """Add the destinations of this process that don't have this event, and don't get it now."""
        event, going = delivery.event, {each.name for each in ready}
        if going.issuperset(delivery.progress):
            return  # all that want it
        has_failed = not any(entry.is_open for entry in delivery.progress.values())
        holder = Holder(event.seq, event.event_type, delivery.progress, has_failed)
        briefly = {*delivery.in_flight, *(each.name for each in left)}
        for destination in self._context.registry.destinations.values():
            name = destination.name
            if name in going or not is_ordered(destination):
                continue
            if not holds_back(holder, destination, self._recorded) and not _fails_now(delivery, name):
                continue
            if stopped.get(name) is not Held.LONGER:
                stopped[name] = Held.BRIEFLY if name in briefly else Held.LONGER


def _fails_now(delivery: Delivery, name: str) -> bool:
    """Return whether the event has failed at the destination, and its row does not say so yet.

    If this worker died now, another one would try the event again. So it is not skipped before that is written.
    """
    entry = delivery.progress.get(name)
    if entry is None or entry.state != FAILED:
        return False
    before = parse(delivery.event.progress).get(name)
    return before is None or before.state != FAILED


class EarlierOfKeys:
    """The events outside a batch that may hold back events of some keys. More of them are read when they are needed."""

    def __init__(
        self,
        context: DeliveryContext,
        below: Mapping[str, int],
        recorded: Snapshot,
        batch: Batch | None = None,
    ) -> None:
        self._dialect = context.dialect
        self._below = below
        self._recorded = recorded
        self._lease = NO_LEASE if batch is None else batch.lease_id
        self._names = _names_by_destination(context.registry.destinations.values(), recorded)
        self._all_names = {name for each in self._names.values() for name in each}
        with self._dialect.connection():
            self._read = read_earlier(self._dialect, below, self._all_names, self._lease)
        # The keys for which more events may hold back others than were read.
        self._have_more = {key for key, found in self._read.items() if len(found.holders) == HOLDERS_READ}

    @property
    def keys_with_waiting(self) -> set[str]:
        """Return the keys whose events wait at a destination of this process."""
        return {key for key, (_, first_waiting) in self._read.items() if first_waiting}

    def has_any(self, key: str) -> bool:
        """Return whether an event may hold back others of the key."""
        holders, first_waiting = self._read[key]
        return bool(holders or first_waiting)

    def held_back(self, key: str, destination: Destination, seq: int) -> Held | None:
        """Return for how long an earlier event of the key holds back `seq` at the destination; None if none does."""
        index = 0
        while True:
            holders, first_waiting = self._read[key]
            names = self._names.get(destination.name, (destination.name,))
            if any(first_waiting.get(name, seq) < seq for name in names):
                return Held.LONGER
            while index < len(holders) and holders[index].seq < seq:
                if holds_back(holders[index], destination, self._recorded):
                    seconds = holders[index].claimed_seconds_ago
                    return Held.BRIEFLY if seconds is not None and seconds < LONGEST_WAIT_SECONDS else Held.LONGER
                index += 1
            if index < len(holders) or key not in self._have_more:
                return None
            self._read_more(key)

    def _read_more(self, key: str) -> None:
        """Read the next events that hold back later ones.

        An event may be parked or released between two reads, and then hold back others in neither. So an event that
        waited in any of the reads counts.
        """
        holders, first_waiting = self._read[key]
        below, after = {key: self._below[key]}, holders[-1].seq
        with self._dialect.connection():
            more = read_earlier(
                self._dialect, below, self._all_names, self._lease, after=after, most=MORE_HOLDERS_READ
            )[key]
        if len(more.holders) < MORE_HOLDERS_READ:
            self._have_more.discard(key)
        first = {name: min(seq, more.first_waiting.get(name, seq)) for name, seq in first_waiting.items()}
        self._read[key] = EarlierEvents([*holders, *more.holders], more.first_waiting | first)


def _names_by_destination(destinations: Iterable[Destination], recorded: Snapshot) -> dict[str, tuple[str, ...]]:
    """Return the names under which events may wait for each destination: its own, and those that it has replaced."""
    replaced = [name for name in recorded.by_name if recorded.successor_of(name) != name]
    return {
        each.name: (each.name, *(name for name in replaced if recorded.successor_of(name) == each.name))
        for each in destinations
        if is_ordered(each)
    }


def holds_back(holder: Holder, destination: OrderedDestination, recorded: Snapshot) -> bool:
    """Return whether a destination must have this event, or have failed at it, before it gets a later one."""
    entry = _entry_at(destination.name, holder.progress, recorded)
    # An entry that was retired is open again while the destination wants the event.
    if entry is None or entry.state == RETIRED:
        if not is_wanted(holder.event_type, destination.events):
            return False
        return not (holder.has_failed and skips_failed(destination))
    if entry.state == DELIVERED or entry.skipped:
        return False
    if entry.state == FAILED or holder.has_failed:
        return not skips_failed(destination)
    return True


def _entry_at(name: str, progress: Mapping[str, ProgressEntry] | None, recorded: Snapshot) -> ProgressEntry | None:
    """Return a destination's entry, or that of a destination that it has replaced; None if it has none yet."""
    if not progress:
        return None
    own = progress.get(name)
    if own is not None and not own.is_untried:
        return own
    # As `plan` does it: an open entry comes before one that has ended.
    replaced = [
        entry
        for each, entry in progress.items()
        if each != name and each not in PLACEHOLDERS and recorded.successor_of(each) == name
    ]
    if replaced:
        return min(replaced, key=lambda entry: not entry.is_open)
    return own if own is not None else progress.get(OTHER_DESTINATIONS)
