"""What a consumer has done so far."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counts:
    """Entries that are finished, calls that the inbox skipped, entries in the dead-letter stream."""

    processed: int = 0
    skipped: int = 0
    parked: int = 0

    def __str__(self) -> str:
        return f"{self.processed} processed, {self.skipped} skipped, {self.parked} parked"
