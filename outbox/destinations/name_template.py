"""Make names that depend on the event, such as the name of a stream: `events.{aggregate_type}`."""

from __future__ import annotations

from collections.abc import Sequence
from string import Formatter

from outbox.errors import RegistrationError
from outbox.events.event import Event

FIELDS = ("aggregate_type", "aggregate_id", "event_type", "tenant_id")
KEY_FIELDS = (*FIELDS, "ordering_key")
# Stands for a field that an event does not have.
ABSENT = "-"


class NameTemplate:
    """A text with fields of the event in braces.

    Only plain field names are allowed: other format expressions could read any attribute of Python's objects.
    """

    def __init__(self, text: object, what: str, fields: Sequence[str] = FIELDS) -> None:
        """`what` names the parameter in errors. `fields` are those that the text may contain."""
        if not isinstance(text, str) or not text:
            raise RegistrationError(f"{what} must be text that is not empty, not {text!r}.")
        self.text = text
        try:
            parts = list(Formatter().parse(text))
        except ValueError as error:
            raise RegistrationError(f"{what} can't be read: {error} in {text!r}.") from None
        for _, field, spec, conversion in parts:
            if field is not None and (field not in fields or spec or conversion):
                known = ", ".join(f"{{{name}}}" for name in fields)
                raise RegistrationError(f"{what} may contain {known} and no others, unlike {text!r}.")
        self._fields = tuple({field for _, field, _, _ in parts if field is not None})
        self.varies = bool(self._fields)
        self._constant = None if self.varies else text.format()

    def render(self, event: Event) -> str:
        """Return the name for an event."""
        if self._constant is not None:
            return self._constant
        values = {name: getattr(event, name) for name in self._fields}
        return self.text.format_map({name: ABSENT if value is None else value for name, value in values.items()})

    def render_key(self, event: Event) -> str | None:
        """Return the key of an event; None if the event lacks a field that is in the text."""
        lacks_field = any(getattr(event, name) is None for name in self._fields)
        return None if lacks_field else self.render(event)
