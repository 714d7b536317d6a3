"""Remember which destinations were reached again after an outage, and which of the events that wait for them are next.

When a circuit breaker closes, thousands of events may wait for their next attempt, some of them for an hour. They are
made due in steps, slowly at first, as the breaker's ramp-up admits them (`throttle/circuit_breaker.py`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from outbox.storage import timestamp

# How many events a step makes due, and how many a second.
PACE = ((500, 25.0), (1_000, 100.0), (1_000, 500.0), (1_000, 1_000.0))


@dataclass(frozen=True, slots=True)
class Step:
    """Which events are next: the number of the step, where it begins, and when, by this process's clock."""

    number: int = 0
    position: datetime = timestamp.EARLIEST
    due_at: float = 0.0

    @property
    def events(self) -> int:
        return PACE[min(self.number, len(PACE) - 1)][0]

    @property
    def per_second(self) -> float:
        return PACE[min(self.number, len(PACE) - 1)][1]


class Recovery:
    """The destinations of this process whose waiting events are being made due, and their next steps."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._steps: dict[str, Step] = {}

    def begin(self, name: str) -> None:
        """Begin with the first step, because the destination was reached again."""
        with self._lock:
            self._steps[name] = Step()

    def take_due(self) -> Iterator[tuple[str, Step]]:
        """Yield the steps that are due; each is yielded once."""
        if not self._steps:  # the usual case needs no lock
            return
        with self._lock:
            due = {name: step for name, step in self._steps.items() if step.due_at <= self._clock()}
            for name in due:
                del self._steps[name]
        yield from due.items()

    def go_on(self, name: str, step: Step, position: datetime, seconds: float) -> None:
        """Schedule the next step in `seconds`, unless the destination was reached again meanwhile."""
        following = replace(step, number=step.number + 1, position=position, due_at=self._clock() + seconds)
        with self._lock:
            self._steps.setdefault(name, following)
