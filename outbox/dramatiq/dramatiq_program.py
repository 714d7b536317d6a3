"""Tell whether this process was started by Dramatiq's program (`dramatiq jobs …`, `outbox worker …`).

Otherwise the worker runs inside another process: that of `outbox up`, or an application's own.
"""

from __future__ import annotations

import sys


def under_dramatiq_cli() -> bool:
    """Return whether this process was started by Dramatiq's program."""
    return "dramatiq.cli" in sys.modules
