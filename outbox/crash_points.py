"""Crash points: where a process can be made to die, so that tests can show what its death costs.

They are switched on by OUTBOX_TEST_CRASH_POINTS, which names a folder, before this module is imported; without it a
point is a function that does nothing. The process that takes a point's file away from the folder dies there, at once
and without cleaning up, and leaves another file to tell who it was. For tests alone: not for a system in use.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

VARIABLE = "OUTBOX_TEST_CRASH_POINTS"

# In the order in which a worker passes them: it has leased events, a destination has answered for one, outcomes are
# about to be written, outcomes are written.
AFTER_CLAIM, AFTER_SEND, BEFORE_SETTLE, AFTER_SETTLE = "after-claim", "after-send", "before-settle", "after-settle"
POINTS = (AFTER_CLAIM, AFTER_SEND, BEFORE_SETTLE, AFTER_SETTLE)


def _go_on(name: str) -> None:
    pass


def _die_if_asked(folder: Path) -> Callable[[str], None]:
    def die_if_asked(name: str) -> None:
        try:
            (folder / name).rename(folder / f"{name}.{os.getpid()}")  # of several, one succeeds
        except FileNotFoundError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    return die_if_asked


_folder = os.environ.get(VARIABLE, "")
point: Callable[[str], None] = _die_if_asked(Path(_folder)) if _folder else _go_on
