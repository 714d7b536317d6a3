"""Check whether this process was started by Dramatiq's program (`dramatiq jobs …`, `outbox worker …`).

If it was not, a worker in this process runs inside `outbox up`, or inside the application's own process. The
middleware, `worker` and `worker_shutdown` then leave logging and signals to that process.
"""

from __future__ import annotations

import sys


def under_dramatiq_cli() -> bool:
    """Return whether this process was started by Dramatiq's program."""
    return "dramatiq.cli" in sys.modules
