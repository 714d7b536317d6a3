"""Run the scheduler process until a signal stops it.

It sends messages to the workers at regular times, and stores the runs of periodic jobs.

`outbox scheduler` and `python -m scheduler` call `main`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from outbox.current_outbox import current, is_configured, loaded_settings, named_outboxes, outboxes, registry
from outbox.dramatiq.broker_kind import is_in_process
from outbox.dramatiq.worker import load_application
from outbox.errors import SettingsError
from outbox.scheduler.timetable import add_periodic_jobs, make_scheduler
from outbox.settings import Settings
from outbox.stop_signal import stop_on_signal
from outbox.storage.connection_errors import CONNECTION_ERRORS
from outbox.telemetry import logs
from outbox.telemetry.heartbeat import heartbeat_of
from outbox.telemetry.process_reports import SCHEDULER
from outbox.text import one_line

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
    knows_database = settings.names_database or is_configured()  # a module may have called outbox.configure
    if registry.periodic:
        _check_database(knows_database=knows_database)
    stopped = stop_on_signal()
    scheduler = make_scheduler(settings, named_outboxes())
    if knows_database:
        add_periodic_jobs(scheduler, current())
    scheduler.start()
    heartbeat = heartbeat_of(SCHEDULER, settings)
    heartbeat.start()
    reporting = outboxes() if knows_database else named_outboxes()
    for box in reporting:
        box.reporter.start(SCHEDULER)
    if not knows_database:
        logger.warning(
            "This scheduler does not know the outbox's database, so `outbox status` and `outbox doctor` can't see it. "
            "It still sends sweeps. Set OUTBOX_DATABASE_URL, or also name the module that calls outbox.configure: "
            "`outbox scheduler your.broker your.models`."
        )
    logger.info(
        "scheduler started: a sweep every %g s, a clean-up every %g min%s",
        settings.sweep_seconds,
        settings.cleanup_minutes,
        f", periodic jobs: {', '.join(sorted(registry.periodic))}" if registry.periodic else "",
    )
    stopped.wait()
    scheduler.shutdown(wait=True)
    for box in reporting:
        box.notifier.flush()
        box.reporter.stop()
    heartbeat.stop()
    logger.info("scheduler stopped")


def _check_database(*, knows_database: bool) -> None:
    """Raise an error if the database is not known, or its tables are missing. One that is down may return later."""
    if not knows_database:
        raise SettingsError(
            "This scheduler has periodic jobs, which need the outbox's database, and does not know it: set "
            "OUTBOX_DATABASE_URL, or also name the module that calls outbox.configure (`outbox scheduler your.jobs "
            "your.models`)."
        )
    try:
        current().check_schema()
    except CONNECTION_ERRORS as error:
        logger.warning(
            "The database is unavailable: %s. Runs of periodic jobs are stored once it is available; sweeps go on.",
            one_line(str(error)),
        )
