"""Draw a sparkline: how many events failed of one cause, over the last days, as bars without a scale."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from outbox.admin.failures import Failure

BARS = 24
HEIGHT = 20.0
STEP = 4.0
BAR = 3.0
# The longest time that is drawn: failed events are kept for a week.
MOST_HOURS = 168


def hours_per_bar(failures: Iterable[Failure], now: datetime) -> int:
    """Return how many hours a bar stands for, so that all causes have the same axis, and the first failure is on it."""
    this_hour = _hour_of(now)
    oldest = min((hour for failure in failures for hour in failure.by_hour), default=this_hour)
    hours = min(this_hour - oldest + 1, MOST_HOURS)
    return max(1, -(-hours // BARS))


def sparkline(by_hour: Mapping[int, int], now: datetime, hours_per_bar: int) -> list[tuple[float, float, float]]:
    """Return the bars that are not empty, the oldest first: x, y and the height of each."""
    this_hour = _hour_of(now)
    counts = [0] * BARS
    for hour, count in by_hour.items():
        age = (this_hour - hour) // hours_per_bar
        if 0 <= age < BARS:
            counts[BARS - 1 - age] += count
    most = max(counts)
    heights = [max(1.5, HEIGHT * count / most) if count else 0.0 for count in counts]
    return [
        (number * STEP, round(HEIGHT - height, 2), round(height, 2)) for number, height in enumerate(heights) if height
    ]


def _hour_of(moment: datetime) -> int:
    return int(moment.timestamp()) // 3600
