"""Choosing event types: `user.created`, `user.*` or `*`."""

from __future__ import annotations

from outbox.errors import RegistrationError
from outbox.storage.models import NAME_LENGTH


class Pattern:
    """One choice of event types; a star stands at the end, for any rest."""

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
        # What a type must begin with; None if it must be this one.
        self.prefix = text[:-1] if text.endswith("*") else None

    def matches(self, event_type: str) -> bool:
        return event_type == self.text if self.prefix is None else event_type.startswith(self.prefix)
