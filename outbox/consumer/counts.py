"""Count what a consumer has done. Applications read them as `consumer.counts`, and the consumer logs them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counts:
    """Totals since the consumer was created.

    `processed`: entries that were acknowledged. `skipped`: calls of handlers that the inbox skipped, because the
    handler had processed the event before. `parked`: entries that were moved to the dead-letter stream.
    """

    processed: int = 0
    skipped: int = 0
    parked: int = 0

    def __str__(self) -> str:
        return f"{self.processed} processed, {self.skipped} skipped, {self.parked} parked"
