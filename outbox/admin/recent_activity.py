"""Read what all processes together did in the last hour: events per minute, and the latency of deliveries.

The processes add their counters to the table outbox_minute. The overview calls these functions.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import accumulate

from outbox.storage.dialect import Dialect
from outbox.storage.operator_models import Minute
from outbox.telemetry.counters import BOUNDS, BUCKETS
from outbox.telemetry.labels import labels_from_text

MINUTES = 60
QUANTILES = (0.5, 0.95, 0.99)
COUNTS = ("emitted", "delivered", "retried", "failed")


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
    since = now.replace(second=0, microsecond=0) - timedelta(minutes=MINUTES - 1)
    names = ((Minute.name.in_(COUNTS)) & (Minute.labels == "")) | (Minute.name == "latency_bucket")
    return dialect.select(Minute.select().where(Minute.minute >= since, names))


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
    """Return the quantiles of the latency from commit to delivery, each as an upper bound in seconds.

    The histogram only tells in which bucket a quantile is. So that bucket's bound is returned, which is true; a value
    in between would be made up. Beyond the last bound it is infinite.
    """
    buckets: Counter[str] = Counter()
    for row in rows:
        if row.name == "latency_bucket":
            buckets[dict(labels_from_text(row.labels))["le"]] += int(row.value)
    counted = sum(buckets.values())
    return {quantile: bound_at(buckets, quantile * counted) for quantile in QUANTILES} if counted else {}


def bound_at(buckets: Mapping[str, int], rank: float) -> float:
    """Return the upper bound of the bucket that contains the rank."""
    bounds = zip(BUCKETS, (*BOUNDS, math.inf), strict=True)
    ends = accumulate(buckets.get(bucket, 0) for bucket in BUCKETS)
    return next((bound for (_, bound), end in zip(bounds, ends, strict=True) if end >= rank), math.inf)
