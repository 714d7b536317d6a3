"""Read what all processes together did in the last hour: events per minute, and the latency of deliveries.

The processes add their counters to the table outbox_minute. The overview calls these functions.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from outbox.storage.dialect import Dialect
from outbox.storage.operator_models import Minute
from outbox.telemetry.counters import BOUNDS, BUCKETS
from outbox.telemetry.labels import labels_from_text

MINUTES = 60
QUANTILES = (0.5, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class Activity:
    """What all processes together did in one minute."""

    minute: datetime
    emitted: int = 0
    delivered: int = 0
    retried: int = 0
    failed: int = 0


def last_hour(dialect: Dialect, now: datetime) -> list[Minute]:
    """Return the counters of the last hour, minute by minute."""
    query = Minute.select().where(Minute.minute > now - timedelta(minutes=MINUTES))
    return dialect.select(query)


def activity_by_minute(rows: Iterable[Minute], now: datetime) -> list[Activity]:
    """Return the activity of each minute, oldest first. Minutes without activity are included."""
    by_minute: dict[datetime, dict[str, int]] = defaultdict(dict)
    for row in rows:
        if not row.labels and row.name in Activity.__slots__:
            by_minute[row.minute][row.name] = int(row.value)
    this_minute = now.replace(second=0, microsecond=0)
    minutes = [this_minute - timedelta(minutes=number) for number in reversed(range(MINUTES))]
    return [Activity(minute, **by_minute.get(minute, {})) for minute in minutes]


def latency_quantiles(rows: Iterable[Minute]) -> dict[float, float]:
    """Return the quantiles of the latency from commit to delivery, estimated from the histogram's buckets."""
    buckets: Counter[str] = Counter()
    for row in rows:
        if row.name == "latency_bucket":
            buckets[dict(labels_from_text(row.labels))["le"]] += int(row.value)
    counted = sum(buckets.values())
    return {quantile: _quantile(buckets, quantile * counted) for quantile in QUANTILES} if counted else {}


def _quantile(buckets: Mapping[str, int], rank: float) -> float:
    """Return the latency at a rank, interpolated within the bucket that contains the rank."""
    below = 0
    for bucket, (lower, upper) in zip(BUCKETS, pairwise((0.0, *BOUNDS, BOUNDS[-1])), strict=True):
        inside = buckets.get(bucket, 0)
        if inside and below + inside >= rank:
            return lower + (upper - lower) * (rank - below) / inside
        below += inside
    return BOUNDS[-1]
