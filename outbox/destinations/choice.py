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
            self._patterns = [Pattern(text) for text in events]
        except TypeError:
            raise RegistrationError(f"events must be a list of event types, not {events!r}.") from None
        if not self._patterns:
            raise RegistrationError("events names no event type; all of them are ['*'].")

    @property
    def texts(self) -> tuple[str, ...]:
        """Return the patterns as they were written."""
        return tuple(pattern.text for pattern in self._patterns)

    def includes(self, event_type: str) -> bool:
        return any(pattern.matches(event_type) for pattern in self._patterns)
