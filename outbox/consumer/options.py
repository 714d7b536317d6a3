"""What a consumer may be told, checked."""

from __future__ import annotations

import math
import os
import secrets
import socket
from dataclasses import dataclass

from outbox.errors import SettingsError

# Redis counts in milliseconds, and takes 0 for none at all.
SHORTEST_SECONDS = 0.001


@dataclass(frozen=True, slots=True)
class Options:
    """As `Consumer` documents them."""

    stream: str
    group: str
    name: str
    dead_letter: str
    batch: int
    max_deliveries: int
    idle_seconds: float
    timeout: float

    def __post_init__(self) -> None:
        for name in ("group", "name", "dead_letter"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise SettingsError(f"{name} must be text that is not empty, not {value!r}.")
        if self.dead_letter == self.stream:
            raise SettingsError(f"The dead-letter stream of {self.stream!r} must be another one.")
        for name in ("batch", "max_deliveries"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise SettingsError(f"{name} must be a whole number from 1 on, not {value!r}.")
        for name in ("idle_seconds", "timeout"):
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not SHORTEST_SECONDS <= value < math.inf:
                raise SettingsError(f"{name} must be a number of seconds from {SHORTEST_SECONDS} on, not {value!r}.")


def unique_name() -> str:
    """A name that no other consumer has: host, process and chance."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
