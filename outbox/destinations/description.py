"""Describe a destination for other processes: without its address, and without anything secret.

A worker's process report holds the descriptions of its destinations; the doctor compares those of all workers.
"""

from __future__ import annotations

from typing import Any

from outbox.destinations.protocol import Destination


def description(destination: Destination) -> dict[str, Any]:
    """Return the kind of a destination, how long a delivery may take, and the event types that it wants."""
    return {
        "kind": type(destination).__name__,
        "seconds": getattr(destination, "hold_seconds", None),
        "events": list(destination.events),
    }
