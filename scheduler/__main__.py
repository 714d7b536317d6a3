"""`python -m scheduler`"""

from __future__ import annotations

import logging
import sys

import outbox
from outbox import logs
from outbox.errors import OutboxError, SettingsError


def main() -> int:
    # It logs a line for each tick that begins and ends.
    logging.getLogger("apscheduler").setLevel(logging.WARNING)
    try:
        settings = outbox.loaded_settings()
        logs.set_up(settings.log_format, "%(asctime)s %(levelname)s %(name)s: %(message)s")
        if settings.redis_url is None:
            raise SettingsError(
                "OUTBOX_REDIS_URL is not set, so this scheduler could reach no worker. "
                "Set it, or run everything in one process: outbox up your.module"
            )
        from outbox.scheduler.process import run  # sets up the broker, which can fail as well

        run(settings)
    except OutboxError as error:
        sys.stderr.write(f"outbox: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
