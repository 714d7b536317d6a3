"""A row of the table: what is measured, beside what, and what it should come to."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

OURS = "outbox"


@dataclass(frozen=True, slots=True)
class Target:
    """A bound for our value: alone, or divided by that of the best of the sides named."""

    bound: float
    at_least: bool
    beside: tuple[str, ...] = ()

    def is_met_by(self, value: float) -> bool:
        return value >= self.bound if self.at_least else value <= self.bound

    def told(self, unit: str) -> str:
        sign = "≥" if self.at_least else "≤"
        return f"{sign} {self.bound:g}" if self.beside else f"{sign} {self.bound:g} {unit}"


def at_least(bound: float, *beside: str) -> Target:
    return Target(bound, at_least=True, beside=beside)


def at_most(bound: float, *beside: str) -> Target:
    return Target(bound, at_least=False, beside=beside)


@dataclass(frozen=True, slots=True)
class Row:
    """`ours` is the side that the target is about."""

    title: str
    unit: str
    target: Target | None = None
    ours: str = OURS

    @property
    def more_is_better(self) -> bool:
        return self.unit.endswith("/s")


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of one round; or why there is none."""

    row: Row
    side: str
    value: float | None
    reason: str = ""


@dataclass(slots=True)
class Result:
    """All rounds of a row."""

    row: Row
    values: dict[str, list[float]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    disturbed: bool = False

    def add(self, sample: Sample) -> None:
        if sample.value is None:
            self.missing[sample.side] = sample.reason
        else:
            self.values.setdefault(sample.side, []).append(sample.value)

    def median(self, side: str) -> float | None:
        return statistics.median(self.values[side]) if side in self.values else None

    @property
    def ratio(self) -> float | None:
        """Ours by the best of what the target compares it with."""
        if self.row.target is None:
            return None
        ours = self.median(self.row.ours)
        best = (max if self.row.more_is_better else min)(self._medians(self.row.target.beside), default=0.0)
        return ours / best if ours is not None and best else None

    @property
    def is_met(self) -> bool | None:
        """None without a target, or without what it takes to tell."""
        target = self.row.target
        if target is None:
            return None
        value = self.ratio if target.beside else self.median(self.row.ours)
        return None if value is None else target.is_met_by(value)

    def _medians(self, sides: Sequence[str]) -> list[float]:
        return [statistics.median(self.values[side]) for side in sides if side in self.values]
