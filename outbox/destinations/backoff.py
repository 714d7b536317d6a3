"""How often a destination is tried, and how long it waits between attempts: `max_attempts` and `backoff`.

Both are optional attributes of a destination, and arguments of `@outbox.handler`. Without them, the event says how
often (`emit(max_attempts=…)`), and the settings say how long (OUTBOX_BACKOFF_BASE_SECONDS and the like).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from outbox.errors import RegistrationError
from outbox.settings import Settings

MOST_ATTEMPTS = 1_000
LONGEST = timedelta(days=365)


@dataclass(frozen=True, slots=True)
class Backoff:
    """The waits between the attempts at one destination. None leaves a value to the settings.

    `base`: the wait before the second attempt; it doubles each time. `cap`: the longest wait. `jitter`: whether each
    wait is up to a quarter longer, at random.
    """

    base: timedelta | None = None
    cap: timedelta | None = None
    jitter: bool | None = None

    def __post_init__(self) -> None:
        for name in ("base", "cap"):
            value = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, timedelta) or not timedelta(0) <= value <= LONGEST:
                raise RegistrationError(
                    f"{name} must be a timedelta of 0 to {LONGEST.days} days, or None, not {value!r}."
                )
        if self.jitter is not None and not isinstance(self.jitter, bool):
            raise RegistrationError(f"jitter must be True, False or None, not {self.jitter!r}.")

    def applied_to(self, settings: Settings) -> Settings:
        """Return the settings with these waits."""
        given: dict[str, Any] = {
            "backoff_base_seconds": None if self.base is None else self.base.total_seconds(),
            "backoff_cap_seconds": None if self.cap is None else self.cap.total_seconds(),
            "backoff_jitter": self.jitter,
        }
        return dataclasses.replace(settings, **{name: value for name, value in given.items() if value is not None})


def check_retry_policy(name: object, max_attempts: object, backoff: object) -> None:
    """Raise RegistrationError unless both have a valid value. `name` is the destination's, for the message."""
    if max_attempts is not None and (type(max_attempts) is not int or not 1 <= max_attempts <= MOST_ATTEMPTS):
        raise RegistrationError(
            f"max_attempts of {name!r} must be a whole number from 1 to {MOST_ATTEMPTS}, or None, not {max_attempts!r}."
        )
    if backoff is not None and not isinstance(backoff, Backoff):
        raise RegistrationError(f"backoff of {name!r} must be an outbox.Backoff, or None, not {backoff!r}.")
