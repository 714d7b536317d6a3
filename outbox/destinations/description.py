"""What a process tells others about a destination: no address, nothing secret."""

from __future__ import annotations

from typing import Any

from outbox.destinations import Destination


def description(destination: Destination) -> dict[str, Any]:
    """Its kind, how long a delivery may take, and the event types that it wants; None where it doesn't say."""
    return {
        "kind": type(destination).__name__,
        "seconds": getattr(destination, "hold_seconds", None),
        "events": _patterns(destination),
    }


def _patterns(destination: Destination) -> list[str] | None:
    """One of the user's own has its `wants`, which only an answer can be had from."""
    patterns = getattr(getattr(destination, "_choice", destination), "_patterns", None)
    return None if patterns is None else [pattern.text for pattern in patterns]
