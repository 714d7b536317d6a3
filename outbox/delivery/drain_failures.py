"""Remember drains that failed, so that an operator can find a process that is running but delivers nothing.

A drain delivers batches until no more events are due. The process reports contain what is remembered here; `outbox
status` and `outbox doctor` show it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from outbox.errors import describe
from outbox.telemetry.counters import Counters
from outbox.text import clean_error, one_line

ERROR_LENGTH = 200


class DrainFailures:
    """How many drains have failed since the last success, since when, and why."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._lock = threading.Lock()
        self._in_a_row = 0
        self._since = 0.0
        self._error = ""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count the drain inside the block as failed if it raises; forget earlier failures if it does not."""
        try:
            yield
        except Exception as error:
            self._failed(error)
            raise
        with self._lock:
            self._in_a_row = 0

    def _failed(self, error: Exception) -> None:
        self._counters.add(drains_failed=1)
        with self._lock:
            if self._in_a_row == 0:
                self._since = time.monotonic()
            self._in_a_row += 1
            self._error = one_line(clean_error(describe(error)))[:ERROR_LENGTH]

    def report(self) -> dict[str, Any]:
        """Return the details for the process report: an empty dict if the last drain succeeded."""
        with self._lock:
            if self._in_a_row == 0:
                return {}
            seconds = round(time.monotonic() - self._since, 3)
            return {"in_a_row": self._in_a_row, "seconds": seconds, "error": self._error}
