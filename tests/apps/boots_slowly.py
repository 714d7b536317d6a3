"""As `ledger`, in a worker process that says with a file that it boots, and goes on when another file is there."""

import os
import time
from pathlib import Path

from outbox.dramatiq import worker_shutdown
from tests.apps import ledger  # noqa: F401 - its handler

GATE = "OUTBOX_TEST_GATE"

worker_shutdown.BEGIN_SECONDS = 1

gate = Path(os.environ[GATE])
gate.with_suffix(".waits").touch()
while not gate.exists():
    time.sleep(0.01)
