"""Which event types a destination wants."""

from __future__ import annotations

from collections.abc import Iterable

from outbox.destinations.pattern import Pattern
from outbox.errors import RegistrationError


class Choice:
    """Any of several patterns."""

    def __init__(self, events: Iterable[str]) -> None:
        if isinstance(events, str):  # which is iterable as well, letter by letter
            raise RegistrationError(f"events must be a list of event types, such as [{events!r}], not {events!r}.")
        try:
            self.texts = tuple(Pattern(text).text for text in events)
        except TypeError:
            raise RegistrationError(f"events must be a list of event types, not {events!r}.") from None
        if not self.texts:
            raise RegistrationError("events names no event type; all of them are ['*'].")
