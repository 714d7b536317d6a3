"""The interface of a router: it finds the destination of a row that is not an event.

An event goes to every destination whose patterns match its type. A job (a Dramatiq message) and a run of a periodic
function are matched by no pattern. Each of them has exactly one destination, which the router of its kind finds.
"""

from __future__ import annotations

from typing import Protocol

from outbox.destinations.protocol import Destination
from outbox.events.event import Event


class Router(Protocol):
    """Finds destinations for the rows of one kind."""

    def destination_for(self, event: Event) -> Destination | None:
        """Return the row's destination, or None if this process does not have it: then the row waits for a worker."""
