"""The last hour as a picture: a bar for each minute, drawn here, so that no script is needed to see it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outbox.admin.overview import Activity

HEIGHT = 100.0
STEP = 10.0
BAR = 7.0
# What is there is seen, however little it is beside the rest.
LEAST = 1.6


@dataclass(frozen=True, slots=True)
class Bar:
    """One minute, in the chart's units; y grows downwards."""

    activity: Activity
    x: float
    delivered_y: float
    delivered_height: float
    failed_y: float
    failed_height: float
    told: str


@dataclass(frozen=True, slots=True)
class Chart:
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


def chart(activity: Sequence[Activity]) -> Chart:
    top = _round_up(max((max(each.delivered + each.failed, each.emitted) for each in activity), default=0))
    bars = [_bar(each, number, top) for number, each in enumerate(activity)]
    return Chart(
        bars=bars,
        width=STEP * len(bars),
        top=top,
        line=" ".join(_step(bar, top) for bar in bars),
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
        told=f"{activity.minute:%H:%M} UTC: {activity.delivered:,} delivered, {activity.failed:,} failed, "
        f"{activity.retried:,} retried, {activity.emitted:,} emitted",
    )


def _height(count: int, top: int) -> float:
    return max(LEAST, HEIGHT * count / top) if count else 0.0


def _step(bar: Bar, top: int) -> str:
    """Two points of the line that stays level for a minute."""
    left = bar.x - (STEP - BAR) / 2
    y = round(HEIGHT - (HEIGHT * bar.activity.emitted / top if bar.activity.emitted else 0.0), 2)
    return f"{left:g},{y:g} {left + STEP:g},{y:g}"


def _round_up(count: int) -> int:
    """To 1, 2 or 5 times a power of ten: a scale that is read easily."""
    size = 1
    while True:
        for factor in (1, 2, 5):
            if factor * size >= count:
                return factor * size
        size *= 10
