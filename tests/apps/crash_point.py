"""Where a receiver dies if it is asked to: what it has done is committed, and nobody has been told.

What the inbox skips is in the log, a line for each, so that it is known even of a process that was killed.
"""

import logging
import os
import signal
from pathlib import Path

logging.basicConfig()
logging.getLogger("outbox").setLevel(logging.DEBUG)


def before_answering(status: int) -> None:
    """Whoever takes the file away does as it says."""
    if status == 204:
        try:
            Path(os.environ["OUTBOX_TEST_CRASH"]).unlink()
        except FileNotFoundError:
            return
        os.kill(os.getpid(), signal.SIGKILL)
