"""Run the scheduler process, which sends messages to the workers at regular times, until a signal stops it.

`outbox scheduler` and `python -m scheduler` call `main`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from outbox.current_outbox import current, is_configured, loaded_settings
from outbox.dramatiq.broker_kind import is_in_process
from outbox.dramatiq.worker import load_application
from outbox.errors import SettingsError
from outbox.scheduler.timetable import make_scheduler
from outbox.settings import Settings
from outbox.stop_signal import stop_on_signal
from outbox.telemetry import logs
from outbox.telemetry.process_reports import SCHEDULER

logger = logging.getLogger(__name__)


def main(modules: Sequence[str]) -> None:
    """Import the application's modules, find the broker, and run the scheduler."""
    # These libraries log a line for each tick and each connection.
    for noisy in ("apscheduler", "pika"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    logs.set_up(loaded_settings().log_format, "%(asctime)s %(levelname)s %(name)s: %(message)s")
    broker = load_application(modules)
    if is_in_process(broker):
        raise SettingsError(
            "OUTBOX_REDIS_URL is not set, and no module named here sets a broker, so this scheduler could not reach "
            "any worker. Set OUTBOX_REDIS_URL, or name the module that sets your broker (`outbox scheduler "
            "your.broker`), or run everything in one process (`outbox up your.module`)."
        )
    run(loaded_settings())


def run(settings: Settings) -> None:
    """Run the timetable until SIGTERM or SIGINT. A message that is being sent at that time is still sent."""
    stopped = stop_on_signal()
    scheduler = make_scheduler(settings)
    scheduler.start()
    knows_database = settings.names_database or is_configured()  # a module may have called outbox.configure
    if knows_database:
        current().reporter.start(SCHEDULER)
    else:
        logger.warning(
            "This scheduler does not know the outbox's database, so `outbox status` and `outbox doctor` can't see it. "
            "It still sends sweeps. Set OUTBOX_DATABASE_URL, or also name the module that calls outbox.configure: "
            "`outbox scheduler your.broker your.models`."
        )
    logger.info(
        "scheduler started: a sweep every %g s, a clean-up every %g min",
        settings.sweep_seconds,
        settings.cleanup_minutes,
    )
    stopped.wait()
    scheduler.shutdown(wait=True)
    if knows_database:
        current().reporter.stop()
    logger.info("scheduler stopped")
