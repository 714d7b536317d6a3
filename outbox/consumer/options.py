"""The parameters and intervals of a `Consumer`. An invalid parameter raises SettingsError."""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass

from outbox.consumer import database_outage
from outbox.errors import SettingsError

DEFAULT_GROUP = "outbox"

# Redis takes milliseconds, and 0 milliseconds has another meaning.
SHORTEST_SECONDS = 0.001
LONGEST_SECONDS = 365 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Intervals:
    """The timeouts and intervals of a consumer."""

    # The longest wait for a new entry. Stopping a consumer may take this long.
    block_seconds: float = 1.0
    # How long to wait before the source or the database is tried again.
    source_retry_seconds: float = 0.5
    database_retry_seconds: float = database_outage.RETRY_SECONDS
    report_seconds: float = 10.0
    cleanup_seconds: float = 3600.0
    # A consumer that has sent no Redis command for this long counts as dead. A running consumer sends one every
    # `block_seconds`, unless a handler takes longer.
    dead_after_seconds: float = 3600.0


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """The checked parameters; `Consumer` documents them."""

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
            raise SettingsError(f"The dead-letter stream of {self.stream!r} must be another stream.")
        for name in ("batch", "max_deliveries"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise SettingsError(f"{name} must be a whole number from 1 on, not {value!r}.")
        for name in ("idle_seconds", "timeout"):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not SHORTEST_SECONDS <= value <= LONGEST_SECONDS:
                limits = f"from {SHORTEST_SECONDS} to {LONGEST_SECONDS:.0f}"
                raise SettingsError(f"{name} must be a number of seconds {limits}, not {value!r}.")

    @property
    def read_count(self) -> int:
        """Return how many entries to read at a time.

        It is 1 if an entry may be delivered only once. After a crash in a larger batch, it would be unknown which of
        its entries was being processed.
        """
        return self.batch if self.max_deliveries > 1 else 1


def unique_name() -> str:
    """Return a name that no other consumer has: host, process id and a random part."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
