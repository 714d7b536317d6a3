"""Crash points: places in the code where tests can kill the process, to show what its death costs.

Claim, dispatch and settle pass them. They are switched on by the environment variable OUTBOX_TEST_CRASH_POINTS, which
names a folder; it is read when this module is imported. Without it a point is a function that does nothing.

A test arms a point by a file of the point's name in the folder. The first process that passes the point renames the
file, so that its name ends with the process's id, and kills itself at once, without any clean-up. For tests only, not
for production.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

VARIABLE = "OUTBOX_TEST_CRASH_POINTS"

# In the order in which a worker passes them: it has leased events, a destination has returned an outcome for one,
# outcomes are about to be written, outcomes are written.
AFTER_CLAIM, AFTER_SEND, BEFORE_SETTLE, AFTER_SETTLE = "after-claim", "after-send", "before-settle", "after-settle"
POINTS = (AFTER_CLAIM, AFTER_SEND, BEFORE_SETTLE, AFTER_SETTLE)


def _do_nothing(name: str) -> None:
    pass


def _die_if_armed(folder: Path) -> Callable[[str], None]:
    def die_if_armed(name: str) -> None:
        try:
            (folder / name).rename(folder / f"{name}.{os.getpid()}")  # of several processes one succeeds
        except FileNotFoundError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    return die_if_armed


_folder = os.environ.get(VARIABLE, "")
point: Callable[[str], None] = _die_if_armed(Path(_folder)) if _folder else _do_nothing
