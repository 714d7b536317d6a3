"""Count what this process does: plain counts, counts with labels, and times in buckets.

Emitting, delivering and the inbox add to the counters. The process reporter takes what was added since its last report,
and writes it to the database, where the counts of all processes add up.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from outbox.telemetry.labels import Labels

# Upper bounds of the buckets in seconds: from a delivery right after its notification to an outage of a day. Processes
# of older versions count in some of these buckets only, which is less exact, and not wrong.
BOUNDS: Final = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0, 21600.0, 43200.0, 86400.0,
)  # fmt: skip
BUCKETS: Final = (*(f"{bound:g}" for bound in BOUNDS), "+Inf")
# Those in which times are counted by the type of events. They are fewer, since each is a row of the history.
TYPE_BOUNDS: Final = (0.01, 0.05, 0.25, 1.0, 5.0, 30.0, 120.0, 600.0, 3600.0, 21600.0, 86400.0)
TYPE_BUCKETS: Final = (*(f"{bound:g}" for bound in TYPE_BOUNDS), "+Inf")

# How many actors, and how many event types, are counted by name, and the name under which all others are counted.
MOST_NAMES: Final = 100
OTHER_NAMES: Final = "other"


class Series(NamedTuple):
    """The name and the labels of one number that only grows."""

    name: str
    labels: Labels = ()


class Counters:
    """Counts that many threads add to.

    claimed, delivered, retried, failed, fenced, released: events, or outcomes, of deliveries. put_off: events that
    were not tried, since a circuit breaker was open, a destination was paused, or a limit was reached. held_back:
    events that were parked behind an earlier one of their ordering key. drains_failed: drains that raised. polls:
    drains that a worker began without a wake-up or sweep. emitted: events that were committed. duplicates: events that
    emit found in the table. skipped: messages that the inbox had seen. `outcomes` are counted by destination and
    outcome; `latency` and, by destination, `send` are times. `jobs_stored`, `jobs_enqueued` and `jobs_failed` are
    counted by actor. They are counted among the events as well. `types_delivered` and `types_failed` are events,
    counted by their type, and `type_bucket` are the times from commit to delivery of the former.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Set all counts to zero, as in a forked child: the parent reports what the parent has counted."""
        self._lock = threading.Lock()
        self._counts: Counter[Series] = Counter()
        self._taken: Counter[Series] = Counter()
        # Sorted.
        self._names: dict[str, list[str]] = {"actor": [], "type": []}
        self._type_buckets: dict[str, list[int]] = {}

    def add(self, **counts: int) -> None:
        """Add to counts without labels."""
        with self._lock:
            for name, count in counts.items():
                self._counts[Series(name)] += count

    def add_labelled(self, name: str, counts: Mapping[Labels, int]) -> None:
        """Add to the counts of one name, for each of these labels."""
        with self._lock:
            for labels, count in counts.items():
                self._counts[Series(name, labels)] += count

    def add_jobs(self, name: str, actors: Iterable[str]) -> None:
        """Add jobs to the counts of one name, by actor: one for each time that an actor is named."""
        self._add_named(name, "actor", actors)

    def add_types(self, name: str, types: Iterable[str]) -> None:
        """Add events to the counts of one name, by type: one for each time that a type is named."""
        self._add_named(name, "type", types)

    def observe_types(self, types: Iterable[str], times: Iterable[float]) -> None:
        """Add delivered events, and the times that they took: the type and the time of each.

        This is done for every event that is delivered, so it only adds to lists of numbers; `take` makes series of
        them. With a series for each type and bucket it took up to 1.8 µs per event, this way 0.13.
        """
        buckets = self._type_buckets
        with self._lock:
            for value, seconds in zip(types, times, strict=True):
                found = buckets.get(value)
                if found is None:
                    found = buckets.setdefault(self._shown("type", value), [0] * (len(TYPE_BOUNDS) + 1))
                found[bisect_left(TYPE_BOUNDS, seconds)] += 1

    def _add_types(self) -> None:
        """Make series of what `observe_types` has counted. The caller holds the lock."""
        for value, numbers in self._type_buckets.items():
            label = ("type", self._shown("type", value))
            self._counts[Series("types_delivered", (label,))] += sum(numbers)
            for bucket, count in zip(TYPE_BUCKETS, numbers, strict=True):
                if count:
                    self._counts[Series("type_bucket", (label, ("le", bucket)))] += count
        self._type_buckets.clear()

    def _add_named(self, name: str, label: str, values: Iterable[str]) -> None:
        """Add to the counts of one name, by the value of a label."""
        counted = Counter(values)
        with self._lock:
            for value, count in counted.items():
                self._counts[Series(name, ((label, self._shown(label, value)),))] += count

    def _shown(self, label: str, value: str) -> str:
        """Return under which value a value is counted: its own, or OTHER_NAMES. The caller holds the lock.

        Each value is a series of its own, and applications make up names (a message may be enqueued for any name). So
        MOST_NAMES are counted by name: of those that this process has seen, the first in alphabetical order. Processes
        that have seen the same names agree on them, so together they don't store many more.
        """
        known = self._names[label]
        if value in known or value == OTHER_NAMES:
            return value
        if len(known) < MOST_NAMES:
            insort(known, value)
            return value
        if value > known[-1]:
            return OTHER_NAMES
        known.pop()
        insort(known, value)
        return value

    def observe(self, name: str, seconds: Iterable[float], **labels: str) -> None:
        """Add times: each to its bucket, and all to the sum."""
        # Looking up each bound in the sorted times takes half as long as looking up each time in the bounds.
        ordered = sorted(seconds)
        if not ordered:
            return
        about = tuple(labels.items())
        total = sum(ordered)
        with self._lock:
            for bucket, count in _by_bucket(ordered):
                self._counts[Series(f"{name}_bucket", (*about, ("le", bucket)))] += count
            # Counter's types say int; the sum is the one number that isn't.
            self._counts[Series(f"{name}_sum", about)] += total  # type: ignore[assignment]

    def __getitem__(self, name: str) -> int:
        return self._counts[Series(name)]

    def take(self) -> dict[Series, float]:
        """Return what was added since the last call. The caller must not lose it: it is returned only once."""
        with self._lock:
            self._add_types()
            new = {series: count - self._taken[series] for series, count in self._counts.items()}
            self._taken = self._counts.copy()
            for series in [each for each in self._counts if self._is_dropped(each)]:
                del self._counts[series], self._taken[series]
        return {series: count for series, count in new.items() if count}

    def _is_dropped(self, series: Series) -> bool:
        """Return whether the series is of a name that is no longer counted by itself."""
        if not series.labels:
            return False
        label, value = series.labels[0]
        return label in self._names and value != OTHER_NAMES and value not in self._names[label]


def _by_bucket(ordered: Sequence[float]) -> Iterator[tuple[str, int]]:
    """Yield the buckets that are not empty, with their counts. Most often that is one of the first few."""
    before, number = 0, len(ordered)
    for bucket, bound in zip(BUCKETS, (*BOUNDS, math.inf), strict=True):
        end = bisect_right(ordered, bound)
        if end > before:
            yield bucket, end - before
        if end == number:
            return
        before = end
