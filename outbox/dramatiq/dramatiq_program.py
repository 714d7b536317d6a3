"""Check whether this process was started by Dramatiq's program (`dramatiq jobs …`, `outbox worker …`).

If it was not, a worker in this process runs inside `outbox up`, or inside the application's own process.
"""

from __future__ import annotations

import sys


def under_dramatiq_cli() -> bool:
    """Return whether this process was started by Dramatiq's program."""
    return "dramatiq.cli" in sys.modules
