"""`outbox up your.module`: workers and scheduler in one process."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import click

from outbox.current_outbox import create_tables, current, loaded_settings
from outbox.stop_signal import stop_on_signal
from outbox.telemetry import logs
from outbox.telemetry.process_reports import UP

logger = logging.getLogger("outbox")

STOP_MILLISECONDS = 60_000


@click.command(short_help="Run workers and scheduler in one process.")
@click.argument("modules", metavar="[MODULE...]", nargs=-1)
@click.option("--threads", default=4, show_default=True, help="Worker threads.", type=click.IntRange(min=1))
def up(modules: tuple[str, ...], threads: int) -> None:
    """Run everything in one process: handlers of MODULE, or what the settings declare, workers, scheduler.

    The embedded way: SQLite, no server. Stop it with Ctrl-C or SIGTERM; what is in flight is finished.
    """
    from outbox.dramatiq.worker import load_application

    logs.set_up(loaded_settings().log_format, "%(asctime)s %(levelname)s %(message)s")
    for noisy in ("apscheduler", "dramatiq", "pika"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    load_application(modules, embedded=True)
    current().check_registered(modules)
    create_tables()
    stopped = stop_on_signal()
    current().reporter.start(UP)  # before the worker in it does
    with running(threads):
        logger.info("up: %d threads, delivering to %s", threads, ", ".join(current().registry.destinations))
        stopped.wait()
        logger.info("stopping")
    logger.info("stopped")


@contextmanager
def running(threads: int) -> Iterator[None]:
    """Workers and scheduler inside this process, for the time of the block."""
    import dramatiq

    from outbox.dramatiq.worker import prepare_worker, start_worker
    from outbox.scheduler.timetable import make_scheduler

    broker = prepare_worker()
    start_worker(broker)
    broker.emit_after("process_boot")
    worker = dramatiq.Worker(broker, worker_threads=threads)
    worker.start()
    scheduler = make_scheduler(loaded_settings())
    scheduler.start()
    try:
        yield
    finally:
        scheduler.shutdown(wait=True)
        worker.stop(timeout=STOP_MILLISECONDS)
        broker.close()
        current().close()
