"""Draw the overview's chart of the last hour: a bar for each minute, and a line of emitted events.

The coordinates are computed here and the template writes them as SVG, so the chart needs no script.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outbox.admin.recent_activity import Activity

# In the units of the SVG's view box: the chart's height, the width of a minute, and the width of its bar.
HEIGHT = 100.0
STEP = 10.0
BAR = 7.0
# A count above 0 is drawn at least this high, so that it is visible beside large ones.
MIN_HEIGHT = 1.6


@dataclass(frozen=True, slots=True)
class Bar:
    """One minute, in the chart's units; y grows downwards. Failed events are stacked on delivered ones."""

    activity: Activity
    x: float
    delivered_y: float
    delivered_height: float
    failed_y: float
    failed_height: float
    tooltip: str


@dataclass(frozen=True, slots=True)
class Chart:
    """The bars, the points of the line, and the sums of the hour. `top` is the count at the upper edge."""

    bars: list[Bar]
    width: float
    top: int
    line: str
    emitted: int
    delivered: int
    failed: int
    retried: int
    busiest: Activity | None

    @property
    def is_empty(self) -> bool:
        return not any(bar.activity.delivered or bar.activity.failed or bar.activity.emitted for bar in self.bars)


def make_chart(activity: Sequence[Activity]) -> Chart:
    """Return the chart of these minutes, oldest first."""
    top = _round_up(max((max(each.delivered + each.failed, each.emitted) for each in activity), default=0))
    bars = [_bar(each, number, top) for number, each in enumerate(activity)]
    return Chart(
        bars=bars,
        width=STEP * len(bars),
        top=top,
        line=" ".join(_line_segment(bar, top) for bar in bars),
        emitted=sum(each.emitted for each in activity),
        delivered=sum(each.delivered for each in activity),
        failed=sum(each.failed for each in activity),
        retried=sum(each.retried for each in activity),
        busiest=max(activity, key=lambda each: each.delivered + each.failed, default=None),
    )


def _bar(activity: Activity, number: int, top: int) -> Bar:
    delivered, failed = (_height(count, top) for count in (activity.delivered, activity.failed))
    return Bar(
        activity=activity,
        x=round(number * STEP + (STEP - BAR) / 2, 2),
        delivered_y=round(HEIGHT - delivered, 2),
        delivered_height=round(delivered, 2),
        failed_y=round(max(0.0, HEIGHT - delivered - failed), 2),
        failed_height=round(failed, 2),
        tooltip=f"{activity.minute:%H:%M} UTC: {activity.delivered:,} delivered, {activity.failed:,} failed, "
        f"{activity.retried:,} retried, {activity.emitted:,} emitted",
    )


def _height(count: int, top: int) -> float:
    return max(MIN_HEIGHT, HEIGHT * count / top) if count else 0.0


def _line_segment(bar: Bar, top: int) -> str:
    """Return the two points of a horizontal segment: the emitted events of one minute."""
    left = bar.x - (STEP - BAR) / 2
    y = round(HEIGHT - (HEIGHT * bar.activity.emitted / top if bar.activity.emitted else 0.0), 2)
    return f"{left:g},{y:g} {left + STEP:g},{y:g}"


def _round_up(count: int) -> int:
    """Return the next larger number that is 1, 2 or 5 times a power of ten, for the scale."""
    size = 1
    while True:
        for factor in (1, 2, 5):
            if factor * size >= count:
                return factor * size
        size *= 10
