"""Draw what happened over time: a bar for each period with a line of emitted events, and lines of latencies.

The coordinates are computed here and the template writes them as SVG, so the charts need no script.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from outbox.admin.durations import format_bound
from outbox.admin.history import DESTINATION, TYPE, WEEK, History, Point
from outbox.telemetry.counters import BOUNDS

# In the units of the SVG's view box: the chart's height, the width of a period, and the width of its bar.
HEIGHT = 100.0
STEP = 10.0
BAR = 7.0
# A count above 0 is drawn at least this high, so that it is visible beside large ones.
MIN_HEIGHT = 1.6
# The upper edge of a chart is one of these times a power of ten.
ROUND_NUMBERS = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
# The quantiles that have lines, with their CSS classes.
LINES = ((0.5, "median"), (0.95, "p95"))


@dataclass(frozen=True, slots=True)
class Bar:
    """One period, in the chart's units; y grows downwards. Failed events are stacked on delivered ones.

    On both, a destination's attempts are stacked that are to be repeated: during an outage there are no others.
    """

    point: Point
    x: float
    delivered_y: float
    delivered_height: float
    failed_y: float
    failed_height: float
    retried_y: float
    retried_height: float
    tooltip: str
    # The filter for the events that ended in this period.
    events: dict[str, str]


@dataclass(frozen=True, slots=True)
class Curve:
    """A quantile over time: a polyline for each stretch in which something was timed."""

    label: str
    css_class: str
    stretches: list[str]


@dataclass(frozen=True, slots=True)
class Chart:
    """The bars, and the points of the line. `top` is the count at the upper edge; `ticks` are times on the axis.

    The chart of latencies has a logarithmic scale from `fastest` to `slowest` seconds. It has no curves if nothing was
    timed.
    """

    history: History
    bars: list[Bar]
    width: float
    top: int
    line: str
    ticks: list[datetime]
    busiest: Point
    curves: list[Curve]
    fastest: float
    slowest: float

    @property
    def unit(self) -> str:
        """Return the time that a bar stands for: `1 min`, `15 min` or `2 h`."""
        minutes = int(self.history.over.bar / timedelta(minutes=1))
        return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h"  # noqa: PLR2004  (minutes in an hour)

    @property
    def tick_format(self) -> str:
        return "date" if self.history.over is WEEK else "time"


def make_chart(history: History) -> Chart:
    """Return the chart of a history."""
    points = history.points
    with_retried = history.scope.kind == DESTINATION
    top = round_up(max(max(_stacked(each, with_retried=with_retried), each.emitted) for each in points))
    bars = [_bar(each, number, top, history) for number, each in enumerate(points)]
    fastest, slowest = _scale(points)
    middle = points[len(points) // 2].begins_at
    return Chart(
        history=history,
        bars=bars,
        width=STEP * len(bars),
        top=top,
        line=" ".join(_line_segment(bar, top) for bar in bars) if history.has_emitted else "",
        ticks=[points[0].begins_at, middle, points[-1].begins_at],
        busiest=max(points, key=lambda each: each.delivered + each.failed),
        curves=_curves(points, fastest, slowest),
        fastest=fastest,
        slowest=slowest,
    )


def _bar(point: Point, number: int, top: int, history: History) -> Bar:
    repeated = point.retried if history.scope.kind == DESTINATION else 0
    delivered, failed, retried = (_height(count, top) for count in (point.delivered, point.failed, repeated))
    return Bar(
        point=point,
        x=round(number * STEP + (STEP - BAR) / 2, 2),
        delivered_y=round(HEIGHT - delivered, 2),
        delivered_height=round(delivered, 2),
        failed_y=round(max(0.0, HEIGHT - delivered - failed), 2),
        failed_height=round(failed, 2),
        retried_y=round(max(0.0, HEIGHT - delivered - failed - retried), 2),
        retried_height=round(retried, 2),
        tooltip=_tooltip(point, history),
        events=_filter_of(point, history),
    )


def _stacked(point: Point, *, with_retried: bool) -> int:
    return point.delivered + point.failed + (point.retried if with_retried else 0)


def _tooltip(point: Point, history: History) -> str:
    moment = f"{point.begins_at:%H:%M}" if history.over is not WEEK else f"{point.begins_at:%a %d %b %H:%M}"
    parts = [f"{point.delivered:,} delivered", f"{point.failed:,} failed"]
    if history.scope.kind != TYPE:
        parts.append(f"{point.retried:,} retried")
    if history.has_emitted:
        parts.append(f"{point.emitted:,} emitted")
    parts += [f"p{quantile * 100:g} {format_bound(seconds)}" for quantile, seconds in point.quantiles.items()]
    return f"{moment} UTC{', still running' if point.is_running else ''}: {', '.join(parts)}"


def _filter_of(point: Point, history: History) -> dict[str, str]:
    ended = {"ended_since": point.begins_at, "ended_until": point.ends_at}
    given = {name: f"{moment:%Y-%m-%dT%H:%M}" for name, moment in ended.items()}
    # There is no filter for the events that a destination has: those that ended in that time are shown.
    kind = history.scope.kind
    return given | ({kind: history.scope.name} if kind in ("type", "actor") else {})


def _height(count: int, top: int) -> float:
    return max(MIN_HEIGHT, HEIGHT * count / top) if count else 0.0


def _line_segment(bar: Bar, top: int) -> str:
    """Return the two points of a horizontal segment: the emitted events of one period."""
    left = bar.x - (STEP - BAR) / 2
    y = round(HEIGHT - (HEIGHT * bar.point.emitted / top if bar.point.emitted else 0.0), 2)
    return f"{left:g},{y:g} {left + STEP:g},{y:g}"


def round_up(count: int) -> int:
    """Return the next larger whole number that is easy to read, for the scale."""
    size = 1
    while True:
        for factor in ROUND_NUMBERS:
            if factor * size >= count and float(factor * size).is_integer():
                return int(factor * size)
        size *= 10


# Latencies


def _scale(points: Sequence[Point]) -> tuple[float, float]:
    """Return the powers of ten of a second between which all drawn quantiles lie."""
    drawn = [min(point.quantiles[each], BOUNDS[-1]) for point in points if point.quantiles for each, _ in LINES]
    if not drawn:
        return 0.001, 1.0
    lower = math.floor(math.log10(max(0.001, min(drawn))))
    upper = math.ceil(math.log10(max(0.001, *drawn)))
    return 10.0**lower, 10.0 ** max(upper, lower + 1)


def _curves(points: Sequence[Point], fastest: float, slowest: float) -> list[Curve]:
    if not any(point.quantiles for point in points):
        return []
    return [
        Curve(f"p{quantile * 100:g}", css_class, list(_stretches(points, quantile, fastest, slowest)))
        for quantile, css_class in LINES
    ]


def _stretches(points: Sequence[Point], quantile: float, fastest: float, slowest: float) -> Iterator[str]:
    """Yield the points of the lines. A period in which nothing was timed ends a line."""
    span = math.log10(slowest / fastest)
    line: list[str] = []
    for number, point in enumerate(points):
        if not point.quantiles:
            if line:
                yield " ".join(line)
            line = []
            continue
        seconds = min(max(point.quantiles[quantile], fastest), slowest)
        y = round(HEIGHT * (1 - math.log10(seconds / fastest) / span), 2)
        # A horizontal segment, so that a single period is visible too.
        line += [f"{number * STEP:g},{y:g}", f"{(number + 1) * STEP:g},{y:g}"]
    if line:
        yield " ".join(line)
