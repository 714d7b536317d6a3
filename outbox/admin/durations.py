"""Write durations for people, in the command line, the dashboard and the doctor's findings."""

from __future__ import annotations

from datetime import timedelta

# A unit, its seconds, and the next smaller one.
UNITS = (("d", 86_400, "h", 3_600), ("h", 3_600, "min", 60), ("min", 60, "s", 1), ("s", 1, "ms", 1))
# From this number on, the smaller unit is left out.
TWO_UNITS_BELOW = 10


def format_duration(span: timedelta) -> str:
    """Return `250 ms`, `3 s`, `5 min 20 s`, `2 h 5 min`, `4 d`: the largest unit, and the next one if it matters."""
    seconds = max(0.0, span.total_seconds())
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    unit, size, smaller, smaller_size = next(each for each in UNITS if seconds >= each[1])
    whole, rest = divmod(int(seconds), size)
    text = f"{whole} {unit}"
    return f"{text} {rest // smaller_size} {smaller}" if whole < TWO_UNITS_BELOW and rest >= smaller_size else text


def format_seconds(seconds: float) -> str:
    """Return the same for a number of seconds: `5 min 20 s`."""
    return format_duration(timedelta(seconds=seconds))


def format_latency(seconds: float) -> str:
    """Return `250 ms` or `1.5 s`: a measured time, with one decimal from a second on."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
