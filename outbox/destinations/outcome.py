"""What became of one event at one destination: `Delivered | Retry | Unavailable | Failed`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from outbox.errors import Unavailable, as_text


@dataclass(frozen=True, slots=True)
class Delivered:
    """The destination has it."""


@dataclass(frozen=True, slots=True)
class Retry:
    """It was refused: costs an attempt. `not_before` overrides the backoff."""

    error: str
    not_before: datetime | timedelta | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "error", as_text(self.error))


@dataclass(frozen=True, slots=True)
class Failed:
    """Trying again can't help."""

    error: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "error", as_text(self.error))


Outcome = Delivered | Retry | Unavailable | Failed

DELIVERED_OUTCOME = Delivered()
