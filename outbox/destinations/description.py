"""Describe a destination for other processes, without its address and without secrets.

A worker's process report holds the descriptions of its destinations. `outbox doctor` compares them between workers.
"""

from __future__ import annotations

from typing import Any

from outbox.destinations.order_policy import skips_failed
from outbox.destinations.protocol import Destination


def describe_destination(destination: Destination) -> dict[str, Any]:
    """Return the kind of a destination, how long a delivery may take, its event types, its risks, and its order."""
    return {
        "kind": type(destination).__name__,
        "seconds": getattr(destination, "hold_seconds", None),
        "events": list(destination.events),
        "risks": list(getattr(destination, "risks", ())),
        "on_failed": "skip" if skips_failed(destination) else "block",
    }
