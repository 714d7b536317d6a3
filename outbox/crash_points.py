"""Crash points: places in the code where a test can kill the process, to check that no event is lost or stuck.

For tests only, not for production. The code that claims, dispatches and settles (writes outcomes to the table) calls
`point` with the name of the place, unless it is None. The environment variable OUTBOX_TEST_CRASH_POINTS names a folder,
and is read when this module is imported. Without the variable, `point` is None.

To arm a crash point, a test creates a file in the folder, with the name of the point. The first process that reaches
the point renames the file, so that its name ends with the process id, and kills itself with SIGKILL.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

VARIABLE = "OUTBOX_TEST_CRASH_POINTS"

# In the order in which a worker reaches them: events are leased; a destination has returned an outcome for an event;
# outcomes are about to be written; outcomes are written.
AFTER_CLAIM, AFTER_SEND, BEFORE_SETTLE, AFTER_SETTLE = "after-claim", "after-send", "before-settle", "after-settle"
POINTS = (AFTER_CLAIM, AFTER_SEND, BEFORE_SETTLE, AFTER_SETTLE)


def _die_if_armed(folder: Path) -> Callable[[str], None]:
    def die_if_armed(name: str) -> None:
        try:
            (folder / name).rename(folder / f"{name}.{os.getpid()}")  # if several processes try, only one succeeds
        except FileNotFoundError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    return die_if_armed


_folder = os.environ.get(VARIABLE, "")
point: Callable[[str], None] | None = _die_if_armed(Path(_folder)) if _folder else None
