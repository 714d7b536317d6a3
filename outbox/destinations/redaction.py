"""Let the application decide which parts of a payload are displayed: `@outbox.redact("user.*")`.

The dashboard and the commands apply it before they show a payload. Destinations get payloads unchanged.
"""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from outbox.destinations.event_filter import Pattern
from outbox.errors import RegistrationError
from outbox.text import visible

logger = logging.getLogger(__name__)

# Gets the event type and the payload, and returns what is displayed instead.
Redact = Callable[[str, Any], object]
F = TypeVar("F", bound=Redact)


class Redactions:
    """The functions that the application has registered, and the event types that each of them is for."""

    def __init__(self) -> None:
        self.functions: list[tuple[tuple[Pattern, ...], Redact]] = []

    def register(self, *patterns: str) -> Callable[[F], F]:
        """Register a function for `"user.created"`, `"user.*"` or `"*"`.

        It gets the event type and the payload (for a job, the name of the actor and the message), and returns what is
        displayed. If several functions match, each gets the result of the one before. If one raises, nothing is
        displayed.
        """
        if not patterns:
            raise RegistrationError('redact needs the event types: @outbox.redact("user.*"), or "*" for all of them.')
        parsed = tuple(Pattern(text) for text in patterns)

        def register(function: F) -> F:
            self.functions.append((parsed, function))
            return function

        return register

    def displayed(self, event_type: str, payload: Any) -> Any:
        """Return the displayed form of a payload, as JSON; if a function raises, a text that says so."""
        matching = [
            function
            for patterns, function in tuple(self.functions)
            if any(each.matches(event_type) for each in patterns)
        ]
        if not matching:
            return payload
        try:
            shown = copy.deepcopy(payload)
            for function in matching:
                shown = function(event_type, shown)
            return json.loads(json.dumps(shown, default=str))
        except Exception as error:
            # The error's text is neither logged nor shown, because it may quote the payload.
            name, kind = visible(event_type), type(error).__name__
            logger.warning("A payload of %s is not shown: its redaction raised %s.", name, kind)
            return f"not shown: the redaction of {event_type} raised {type(error).__name__}"

    def clear(self) -> None:
        """Forget all functions; for tests."""
        self.functions = []
