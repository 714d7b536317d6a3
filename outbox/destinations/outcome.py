"""The outcome of one event at one destination: `Delivered | Retry | Unavailable | Failed`.

A destination returns an outcome for each event; `outbox.delivery.retry` decides from it what happens next.
`Unavailable` is also an exception that handlers raise, and is defined in `outbox.errors`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from outbox.errors import Unavailable, as_text


@dataclass(frozen=True, slots=True)
class Delivered:
    """The destination has received the event."""


@dataclass(frozen=True, slots=True)
class Retry:
    """The destination did not accept the event. This costs an attempt.

    The next attempt is at `not_before` (a time, or a wait from now), or after the backoff if that is None.
    """

    error: str
    not_before: datetime | timedelta | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "error", as_text(self.error))


@dataclass(frozen=True, slots=True)
class Failed:
    """Trying again can't help: the event has failed at this destination."""

    error: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "error", as_text(self.error))


Outcome = Delivered | Retry | Unavailable | Failed

# One instance for all events: making one takes about ten times as long as returning this.
DELIVERED_OUTCOME = Delivered()
