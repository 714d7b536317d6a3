"""What this process has seen, counted: plain counts, counts with labels, and times in buckets."""

from __future__ import annotations

import math
import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

Labels = tuple[tuple[str, str], ...]

# Upper bounds in seconds: from a wake-up that went well to an outage of a day.
BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0, 86400.0)
BUCKETS: Final = (*(f"{bound:g}" for bound in BOUNDS), "+Inf")


class Series(NamedTuple):
    """One number that only grows: a name, and what it is about."""

    name: str
    labels: Labels = ()


class Counters:
    """Counts that many threads add to.

    claimed, delivered, retried, failed, fenced, released: events, or outcomes, of deliveries. drains_failed: drains
    that raised. polls: drains that a worker began without a wake-up or sweep. emitted, duplicates: what was committed,
    and what emit found to be there. skipped: messages that the inbox knew. `outcomes` are counted by destination and
    outcome; `latency` and, by destination, `send` are times.
    """

    def __init__(self) -> None:
        self.start_afresh()

    def start_afresh(self) -> None:
        """Also what a fork leaves behind: what the parent has counted, the parent publishes."""
        self._lock = threading.Lock()
        self._counts: Counter[Series] = Counter()
        self._taken: Counter[Series] = Counter()

    def add(self, **counts: int) -> None:
        """Add to counts without labels."""
        with self._lock:
            for name, count in counts.items():
                self._counts[Series(name)] += count

    def add_labelled(self, name: str, counts: Mapping[Labels, int]) -> None:
        with self._lock:
            for labels, count in counts.items():
                self._counts[Series(name, labels)] += count

    def observe(self, name: str, seconds: Iterable[float], **labels: str) -> None:
        """Add times: each to its bucket, and all to the sum."""
        ordered = sorted(seconds)  # and each bound is looked up in them: that takes half as long as the reverse
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

    def snapshot(self) -> dict[str, int]:
        """The counts without labels."""
        with self._lock:
            return {series.name: count for series, count in self._counts.items() if not series.labels}

    def series(self) -> dict[Series, float]:
        """Everything, since this process began."""
        with self._lock:
            return dict(self._counts)

    def take(self) -> dict[Series, float]:
        """What has come since the last time; whoever takes it answers for it."""
        with self._lock:
            new = {series: count - self._taken[series] for series, count in self._counts.items()}
            self._taken = self._counts.copy()
        return {series: count for series, count in new.items() if count}


def _by_bucket(ordered: Sequence[float]) -> Iterator[tuple[str, int]]:
    """How many there are in each bucket that is not empty; most often that is one of the first."""
    before, number = 0, len(ordered)
    for bucket, bound in zip(BUCKETS, (*BOUNDS, math.inf), strict=True):
        end = bisect_right(ordered, bound)
        if end > before:
            yield bucket, end - before
        if end == number:
            return
        before = end
