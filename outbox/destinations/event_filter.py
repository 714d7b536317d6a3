"""Which event types a destination wants: patterns such as `user.created`, `user.*` or `*`.

A destination has a list of patterns (`events`), and wants an event type that any of them matches. The registry, the
recorded destinations and `outbox.ignore` all match event types with `Pattern`.
"""

from __future__ import annotations

from collections.abc import Iterable

from outbox.errors import RegistrationError
from outbox.storage.models import NAME_LENGTH


class Pattern:
    """A pattern for event types: a whole name, a prefix with a star (`user.*`), or a star alone for all of them."""

    __slots__ = ("prefix", "text")

    def __init__(self, text: object) -> None:
        if not isinstance(text, str) or not 1 <= len(text) <= NAME_LENGTH:
            raise RegistrationError(
                f"An event type must be text of 1 to {NAME_LENGTH} characters, not {text!r}. "
                'Name them one by one: @outbox.handler("user.created", "user.deleted").'
            )
        if "*" in text[:-1] or (text.endswith("*") and text != "*" and not text.endswith(".*")):
            raise RegistrationError(f"{text!r} is not a pattern: use a name, or 'prefix.*', or '*'.")
        self.text = text
        # What an event type must begin with; None if it must equal `text`.
        self.prefix = text[:-1] if text.endswith("*") else None

    def matches(self, event_type: str) -> bool:
        """Return whether the pattern matches an event type."""
        return event_type == self.text if self.prefix is None else event_type.startswith(self.prefix)


def is_wanted(event_type: str, patterns: Iterable[str]) -> bool:
    """Return whether any of these patterns matches an event type."""
    return any(Pattern(text).matches(event_type) for text in patterns)


def check_event_filter(events: Iterable[str]) -> tuple[str, ...]:
    """Return the patterns of a destination as a tuple; raise RegistrationError if one is invalid or there are none."""
    if isinstance(events, str):  # a string is iterable too, character by character
        raise RegistrationError(f"events must be a list of event types, such as [{events!r}], not {events!r}.")
    try:
        patterns = tuple(Pattern(text).text for text in events)
    except TypeError:
        raise RegistrationError(f"events must be a list of event types, not {events!r}.") from None
    if not patterns:
        raise RegistrationError("events is empty: name the event types, or use ['*'] for all of them.")
    return patterns
