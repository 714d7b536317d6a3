"""Describe a destination for other processes, without its address and without secrets.

A worker's process report holds the descriptions of its destinations. `outbox doctor` compares them between workers.
"""

from __future__ import annotations

from typing import Any

from outbox.destinations.protocol import Destination


def describe_destination(destination: Destination) -> dict[str, Any]:
    """Return the kind of a destination, how long a delivery may take, and the event types that it wants."""
    return {
        "kind": type(destination).__name__,
        "seconds": getattr(destination, "hold_seconds", None),
        "events": list(destination.events),
    }
