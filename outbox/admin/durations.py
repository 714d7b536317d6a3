"""Format durations for people, in the command line, the dashboard and the doctor's findings."""

from __future__ import annotations

import math
from datetime import timedelta

from outbox.telemetry.counters import BOUNDS

# A unit and its seconds; the next smaller unit and its seconds.
UNITS = (("d", 86_400, "h", 3_600), ("h", 3_600, "min", 60), ("min", 60, "s", 1), ("s", 1, "ms", 1))
# From this rate on, all digits are printed.
THOUSAND = 1_000
# From this number of the larger unit on, the smaller unit is left out.
TWO_UNITS_BELOW = 10


def format_duration(span: timedelta) -> str:
    """Return, for example, `250 ms`, `3 s`, `5 min 20 s` or `12 h`: the largest unit and perhaps the next one."""
    seconds = max(0.0, span.total_seconds())
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    unit, size, smaller, smaller_size = next(each for each in UNITS if seconds >= each[1])
    whole, rest = divmod(int(seconds), size)
    text = f"{whole} {unit}"
    return f"{text} {rest // smaller_size} {smaller}" if whole < TWO_UNITS_BELOW and rest >= smaller_size else text


def format_age(span: timedelta) -> str:
    """Return a duration in its largest unit, for a narrow column: `12 s`, `5 min` or `3 d`."""
    seconds = max(0.0, span.total_seconds())
    unit, size = next(((name, size) for name, size, *_ in UNITS if seconds >= size), ("s", 1))
    return f"{int(seconds) // size} {unit}"


def format_seconds(seconds: float) -> str:
    """Return a number of seconds as `format_duration` does, for example `5 min 20 s`."""
    return format_duration(timedelta(seconds=seconds))


def format_latency(seconds: float) -> str:
    """Return a measured time, for example `250 ms` or `1.5 s`."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def format_rate(per_second: float) -> str:
    """Return a rate in the unit in which it is at least one, or by the hour: `12 a second`, `3.5 a minute`."""
    for unit, seconds in (("second", 1), ("minute", 60)):
        if per_second * seconds >= 1:
            return f"{per_second * seconds:,.3g} a {unit}" if per_second < THOUSAND else f"{per_second:,.0f} a {unit}"
    return f"{per_second * 3_600:.3g} an hour"


def format_bound(seconds: float) -> str:
    """Return an upper bound of a measured time, for example `≤ 250 ms`, `≤ 5 min` or `> 1 d`."""
    if seconds == math.inf:
        return f"> {format_seconds(BOUNDS[-1])}"
    return f"≤ {format_seconds(seconds)}"
