"""Where events go. A destination is given events and says, for each, what became of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from outbox.event import Event
from outbox.outcome import Outcome


class Destination(Protocol):
    """Anything with a name that is stable across releases, a choice of event types, and a way to deliver.

    `deliver` takes events from the iterable as it gets to them: an event that was taken has begun, and one that was
    not taken by the time the batch has to end goes back untouched. It yields an outcome for every event it took.
    """

    name: str

    def wants(self, event_type: str) -> bool: ...

    def deliver(self, events: Iterable[Event]) -> Iterable[tuple[Event, Outcome]]: ...
