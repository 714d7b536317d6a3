"""Count events up to a cap, so that the cost does not grow with the table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

COUNT_CAP = 10_000


@dataclass(frozen=True, slots=True)
class Count:
    """A number of events. If `at_least` is true, counting stopped at this number, and there may be more."""

    number: int
    at_least: bool = False

    @classmethod
    def up_to(cls, cap: int, counted: int) -> Count:
        """Return the count for a query that was limited to `cap + 1` rows and returned `counted` rows."""
        return cls(min(counted, cap), at_least=counted > cap)

    def of(self, noun: str) -> str:
        """Return `1 event`, `2 events` or `10,000+ events`."""
        return f"{self} {noun}{'' if self.number == 1 and not self.at_least else 's'}"

    def __str__(self) -> str:
        return f"{self.number:,}{'+' if self.at_least else ''}"


def total(counts: Iterable[Count]) -> Count:
    """Return the sum of several counts, which is a minimum if one of them is."""
    counts = list(counts)
    return Count(sum(count.number for count in counts), any(count.at_least for count in counts))
