"""Run the scheduler process: `python -m scheduler [MODULE...]`. `outbox scheduler` does the same."""

from __future__ import annotations

import sys

from outbox.errors import OutboxError
from outbox.scheduler.process import main

if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except OutboxError as error:
        sys.stderr.write(f"outbox: {error}\n")
        sys.exit(2)
