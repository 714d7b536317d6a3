"""What this process has seen, counted."""

from __future__ import annotations

import threading
from collections import Counter


class Counters:
    """Named counts that many threads add to: claimed, delivered, retried, failed, fenced, released, duplicates."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, **counts: int) -> None:
        with self._lock:
            self._counts.update(counts)

    def __getitem__(self, name: str) -> int:
        return self._counts[name]

    def snapshot(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)
