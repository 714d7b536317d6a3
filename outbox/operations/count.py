"""Count events up to a cap, so that the cost does not grow with the table."""

from __future__ import annotations

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

    def __str__(self) -> str:
        return f"{self.number:,}{'+' if self.at_least else ''}"
