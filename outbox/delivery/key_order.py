"""Feed a destination the events of each ordering key one after another.

A destination may take many events before it returns the first outcome: a webhook has several requests in flight, a
stream sends a whole batch in one round trip. The next event of a key is ready only when the one before it has ended. If
the destination has asked for more events before that, the share calls it again with those that are ready by then. A
destination that takes one event at a time, as a handler does, gets all events in one call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from outbox.delivery.batch import Delivery


class KeyOrder:
    """The events of one share that the destination has not taken yet."""

    def __init__(self, deliveries: Iterable[Delivery]) -> None:
        # Events without a key, and the next event of each key of which none is in flight.
        self._ready: deque[Delivery] = deque()
        # The events of each key that follow the one which is ready or in flight.
        self._following: dict[str, deque[Delivery]] = {}
        self._held_back: list[Delivery] = []
        for delivery in deliveries:
            key = key_of(delivery)
            if key is None:
                self._ready.append(delivery)
            elif key in self._following:
                self._following[key].append(delivery)
            else:
                self._following[key] = deque()
                self._ready.append(delivery)

    @property
    def has_ready(self) -> bool:
        """Return whether an event may begin now."""
        return bool(self._ready)

    def next(self) -> Delivery | None:
        """Return the next event that may begin now, if there is one."""
        return self._ready.popleft() if self._ready else None

    def ended(self, delivery: Delivery, *, goes_on: bool) -> None:
        """Take note of an event's outcome: the next event of its key is ready, or all later ones are held back."""
        following = self._following.get(key_of(delivery) or "")
        if not following:
            return
        if goes_on:
            self._ready.append(following.popleft())
        else:
            self._held_back += following
            following.clear()

    def not_begun(self, delivery: Delivery) -> None:
        """Forget the later events of a key whose event could not begin: they are given back with it."""
        self._following.pop(key_of(delivery) or "", None)

    def take_held_back(self) -> list[Delivery]:
        """Return the events that have to wait behind one that this destination does not have, and forget them."""
        held_back, self._held_back = self._held_back, []
        return held_back

    def take_all(self) -> list[Delivery]:
        """Return the events that may still begin, in the order of each key, and forget them."""
        left = [*self._ready, *(each for following in self._following.values() for each in following)]
        self._ready.clear()
        self._following.clear()
        return left


def key_of(delivery: Delivery) -> str | None:
    """Return the event's ordering key, or None if order does not matter to it."""
    return delivery.event.ordering_key if delivery.event.is_ordered else None
