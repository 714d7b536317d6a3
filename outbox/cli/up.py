"""`outbox up your.module`: workers and scheduler in one process."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import dramatiq

import outbox
from outbox.errors import RegistrationError

logger = logging.getLogger("outbox")

STOP_MILLISECONDS = 60_000


@click.command()
@click.argument("modules", metavar="MODULE...", nargs=-1, required=True)
@click.option("--threads", default=4, show_default=True, help="Worker threads.", type=click.IntRange(min=1))
def up(modules: tuple[str, ...], threads: int) -> None:
    """Run everything in one process: handlers of MODULE, workers, scheduler.

    The embedded way: SQLite, no server. Stop it with Ctrl-C or SIGTERM; what is in flight is finished.
    """
    from scheduler.process import stop_signal  # a signal must find everything else in place

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    for noisy in ("apscheduler", "dramatiq"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    sys.path.insert(0, str(Path.cwd()))
    for module in modules:
        _import(module)
    outbox.create_tables()
    stopped = stop_signal()
    with running(threads):
        logger.info("up: %d threads, delivering to %s", threads, ", ".join(outbox.current().registry.destinations))
        stopped.wait()
        logger.info("stopping")


@contextmanager
def running(threads: int) -> Iterator[None]:
    """Workers and scheduler inside this process, for the time of the block."""
    import jobs  # noqa: F401  (declares the actors, on a broker from the settings as they are now)
    from jobs.readiness import check_ready
    from scheduler.timetable import make_scheduler

    broker = dramatiq.get_broker()
    check_ready(broker)
    broker.emit_after("process_boot")
    worker = dramatiq.Worker(broker, worker_threads=threads)
    worker.start()
    scheduler = make_scheduler(outbox.loaded_settings())
    scheduler.start()
    try:
        yield
    finally:
        scheduler.shutdown(wait=True)
        worker.stop(timeout=STOP_MILLISECONDS)
        broker.close()


def _import(module: str) -> None:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise
        raise RegistrationError(f"There is no module {module!r} here. Name it as Python would import it.") from None
