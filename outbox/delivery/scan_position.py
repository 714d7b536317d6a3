"""Remember where the next claim should start scanning the index of due events.

The index is scanned from the oldest due event on. It also holds events that are being delivered right now and, while a
transaction with an old snapshot is open, entries of settled events that PostgreSQL can't remove yet. Scanning from the
start would read past all of them at each claim. So each process resumes where its last full batch ended.

Events can become due before that position: retries, expired leases, transactions that committed late. They are found
by a full scan, from the start of the index. It runs when a claim returns fewer events than it asked for, and otherwise
once a second. If full scans are slow, they run less often: they take about a tenth of the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable

FULL_SCAN_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 10.0
SHARE_OF_TIME = 0.1


class ScanPosition:
    """Where to resume scanning. It is only a hint: the threads of a process may overwrite each other's value."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._position: object = None
        # When the next full scan is due: without, and with, events whose lease has expired.
        self._full_scan_at = {False: 0.0, True: 0.0}

    def resume_from(self, *, include_expired_leases: bool) -> object:
        """Return the due time to resume from, or None for a full scan."""
        now = self._clock()
        if self._position is not None and now < self._full_scan_at[include_expired_leases]:
            return self._position
        self._schedule_full_scan(include_expired_leases, now + FULL_SCAN_SECONDS)
        return None

    def full_scan_took(self, seconds: float, *, include_expired_leases: bool) -> None:
        """Schedule the next full scan, so that full scans take at most about a tenth of the time."""
        pause = min(max(FULL_SCAN_SECONDS, seconds / SHARE_OF_TIME), LONGEST_PAUSE_SECONDS)
        self._schedule_full_scan(include_expired_leases, self._clock() + pause)

    def batch_ended_at(self, due_at: object) -> None:
        """Remember where a full batch ended, or forget it (None) after a batch that was not full."""
        self._position = due_at

    def _schedule_full_scan(self, include_expired_leases: bool, at: float) -> None:
        """Set the time of the next full scan. One that includes expired leases finds all other due events, too."""
        self._full_scan_at[False] = at
        if include_expired_leases:
            self._full_scan_at[True] = at
