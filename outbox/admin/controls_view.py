"""Describe what operators have paused and throttled, for commands and pages."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from outbox.admin.durations import format_duration
from outbox.destinations.controls import EVERYTHING, Controls, Pause


def describe_controls(controls: Controls, now: datetime) -> dict[str, str]:
    """Return by destination, or EVERYTHING, what is in force now: `paused for 5 min by alice, for 2 h more`."""
    found = {name: describe_pause(pause, now) for name, pause in controls.pauses.items() if pause.is_active(now)}
    for name, throttle in controls.throttles.items():
        if throttle.is_active(now):
            text = f"throttled to {throttle.per_second:g}/s by {throttle.by}{_end(throttle.until, now)}"
            found[name] = f"{found[name]}; {text}" if name in found else text
    return dict(sorted(found.items()))


def describe_pause(pause: Pause, now: datetime) -> str:
    """Return since when and until when it is paused, by whom, and why."""
    reason = f": {pause.reason}" if pause.reason else ""
    return f"paused for {format_duration(now - pause.since)} by {pause.by}{_end(pause.until, now)}{reason}"


def controls_as_data(controls: Controls, now: datetime, name: str) -> dict[str, Any]:
    """Return the pause and the throttle of one destination for JSON; None for each that it does not have."""
    pause, throttle = controls.pauses.get(name), controls.throttles.get(name)
    return {
        "paused": None
        if pause is None or not pause.is_active(now)
        else {"since": pause.since, "until": pause.until, "by": pause.by, "reason": pause.reason},
        "throttled": None
        if throttle is None or not throttle.is_active(now)
        else {
            "per_second": throttle.per_second,
            "since": throttle.since,
            "until": throttle.until,
            "by": throttle.by,
        },
    }


def shown_name(name: str) -> str:
    """Return the name of a destination as it is printed; EVERYTHING is printed as a word."""
    return "everything" if name == EVERYTHING else name


def _end(until: datetime | None, now: datetime) -> str:
    return "" if until is None else f", for {format_duration(until - now)} more"
