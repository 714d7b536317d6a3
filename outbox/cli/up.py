"""`outbox up [MODULE...]`: run workers and scheduler in one process, without Redis."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import click

from outbox.current_outbox import current, loaded_settings, named_outboxes, outboxes
from outbox.stop_signal import stop_on_signal
from outbox.telemetry import logs
from outbox.telemetry.process_reports import UP

logger = logging.getLogger(__name__)

# How long to wait for deliveries in flight when the process stops.
STOP_MILLISECONDS = 60_000


@click.command(short_help="Run workers and scheduler in one process.")
@click.argument("modules", metavar="[MODULE...]", nargs=-1)
@click.option(
    "--threads", default=4, show_default=True, help="Run this many worker threads.", type=click.IntRange(min=1)
)
def up(modules: tuple[str, ...], threads: int) -> None:
    """Run workers and scheduler in one process. It needs no Redis, and with SQLite no server at all.

    Events go to the handlers of MODULE and to the destinations that the settings declare. Stop it with Ctrl-C or
    SIGTERM; it finishes the deliveries in flight.
    """
    from outbox.dramatiq.worker import load_application, may_have_jobs

    logs.set_up(loaded_settings().log_format)
    for noisy in ("apscheduler", "dramatiq", "pika"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    broker = load_application(modules, embedded=True)
    current().check_registered(modules, has_jobs=may_have_jobs(broker))
    for box in outboxes():
        box.create_tables()
    stopped = stop_on_signal()
    for box in outboxes():
        box.reporter.start(UP)  # before the worker starts: it would report this process as a worker
    with workers_and_scheduler(threads):
        logger.info("up: %d threads, delivering to %s", threads, ", ".join(current().registry.destinations))
        stopped.wait()
        logger.info("stopping")
    logger.info("stopped")


@contextmanager
def workers_and_scheduler(threads: int) -> Iterator[None]:
    """Run workers and scheduler as threads of this process, as long as the `with` block runs."""
    import dramatiq

    from outbox.dramatiq.worker import prepare_worker, start_worker
    from outbox.scheduler.timetable import add_periodic_jobs, make_scheduler

    broker = prepare_worker()
    start_worker(broker)
    broker.emit_after("process_boot")
    worker = dramatiq.Worker(broker, worker_threads=threads)
    worker.start()
    scheduler = make_scheduler(loaded_settings(), named_outboxes())
    add_periodic_jobs(scheduler, current())
    scheduler.start()
    try:
        yield
    finally:
        scheduler.shutdown(wait=True)
        worker.stop(timeout=STOP_MILLISECONDS)
        broker.close()
        for box in outboxes():
            box.close()
