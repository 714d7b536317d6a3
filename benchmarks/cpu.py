"""Who uses the processors: we and what we started, or others."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

TICKS = os.sysconf("SC_CLK_TCK")
# Shares of all processors, beyond which a measurement is not to be trusted.
MOST_BY_OTHERS, MOST_STOLEN = 0.08, 0.02


def family_seconds(pid: int) -> float:
    """What a process, those it has started, and those of them that have ended have used."""
    return sum(_seconds(each, ended=True) for each in (pid, *descendants(pid)))


def memory_megabytes(pid: int) -> float:
    """Of a process and those that it has started: what is resident, the largest of them."""
    return max(_resident(each) for each in (pid, *descendants(pid)))


def descendants(pid: int) -> set[int]:
    """Those that a process has started, and theirs."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The name before it stands in brackets, and may hold anything.
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found: set[int] = set()
    ring = {pid}
    while ring:
        ring = {child for child, parent in parents.items() if parent in ring} - found
        found |= ring
    return found


def _seconds(pid: int, *, ended: bool) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11 : 15 if ended else 13])) / TICKS


def _resident(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    except OSError:
        return 0.0


@dataclass(frozen=True, slots=True)
class Moment:
    """Counts since the machine was started."""

    at: float
    busy: float
    stolen: float
    ours: float

    @classmethod
    def now(cls) -> Self:
        fields = [int(field) / TICKS for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
        user, nice, system, _, _, interrupts, soft, steal = fields[:8]
        return cls(time.monotonic(), user + nice + system + interrupts + soft, steal, family_seconds(os.getpid()))


@dataclass(frozen=True, slots=True)
class Others:
    """The share of all processors that others had, and that the machine's host kept."""

    share: float
    stolen: float

    @classmethod
    def since(cls, then: Moment) -> Self:
        now = Moment.now()
        available = max(1e-3, (now.at - then.at) * (os.cpu_count() or 1))
        others = (now.busy - then.busy) - (now.ours - then.ours)
        return cls(max(0.0, others / available), max(0.0, (now.stolen - then.stolen) / available))

    @property
    def disturb(self) -> bool:
        return self.share > MOST_BY_OTHERS or self.stolen > MOST_STOLEN

    def __str__(self) -> str:
        return f"{self.share:.0%} of the processors used by others, {self.stolen:.0%} withheld by the host"
