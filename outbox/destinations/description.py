"""What a process tells others about a destination: no address, nothing secret."""

from __future__ import annotations

from typing import Any

from outbox.destinations.protocol import Destination


def description(destination: Destination) -> dict[str, Any]:
    """Its kind, how long a delivery may take, and the event types that it wants."""
    return {
        "kind": type(destination).__name__,
        "seconds": getattr(destination, "hold_seconds", None),
        "events": list(destination.events),
    }
