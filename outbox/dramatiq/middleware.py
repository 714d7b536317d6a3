"""Dramatiq middleware that an outbox worker needs, around our actors and the application's own."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import dramatiq
from dramatiq.middleware import Middleware

from outbox.current_outbox import current, loaded_settings
from outbox.delivery.pool_size import check_pool
from outbox.dramatiq import worker_shutdown
from outbox.dramatiq.actor_names import DELIVER
from outbox.dramatiq.dramatiq_program import under_dramatiq_cli
from outbox.dramatiq.fallback_poller import FallbackPoller
from outbox.errors import OutboxError
from outbox.inbox.once_decorator import HANDLER_NAME_ATTRIBUTE, SKIPPED
from outbox.storage.connection_errors import CONNECTION_ERRORS
from outbox.telemetry import logs
from outbox.telemetry.process_reports import WORKER

M = TypeVar("M", bound=Middleware)


def find_middleware(broker: dramatiq.Broker, kind: type[M]) -> M:
    """Return the broker's middleware of this class."""
    return next(middleware for middleware in broker.middleware if isinstance(middleware, kind))


def has_worker(broker: dramatiq.Broker) -> bool:
    """Return whether an outbox worker of this process takes messages from the broker."""
    is_running = any(isinstance(middleware, BusyThreads) and middleware.threads > 0 for middleware in broker.middleware)
    return is_running and DELIVER in broker.actors


class Connections(Middleware):
    """Opens a database connection before each message, and closes or discards it afterwards.

    Dramatiq knows nothing of databases: without this, a thread whose connection broke would stay broken.
    """

    def before_process_message(self, broker: dramatiq.Broker, message: Any) -> None:
        # If this fails, the actor connects itself and reports the error.
        with contextlib.suppress(*CONNECTION_ERRORS):
            current().database.connect(reuse_if_open=True)

    def after_process_message(
        self, broker: dramatiq.Broker, message: Any, *, result: Any = None, exception: BaseException | None = None
    ) -> None:
        box = current()
        if box.database.is_closed():
            return
        interrupted = exception is not None and not isinstance(exception, Exception)
        in_transaction = box.database.in_transaction() or box.dialect.in_transaction
        if interrupted or in_transaction or isinstance(exception, CONNECTION_ERRORS):
            # An interrupt may have left a transaction open, or a result half read.
            box.dialect.discard_connection()
        else:
            box.database.close()

    def after_skip_message(self, broker: dramatiq.Broker, message: Any) -> None:
        self.after_process_message(broker, message)


class Skips(Middleware):
    """Makes an actor return None when the inbox has skipped its message.

    Dramatiq would store any other value as a result, or warn that it is not used.
    """

    def after_declare_actor(self, broker: dramatiq.Broker, actor: dramatiq.Actor[Any, Any]) -> None:
        function = actor.fn
        if not hasattr(function, HANDLER_NAME_ATTRIBUTE):
            return

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            return None if result is SKIPPED else result

        actor.fn = call


class BusyThreads(Middleware):
    """Tracks which worker threads of this process are busy: the consumer fetches a wake-up only for a free one."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.threads = 0
        self._busy: set[int] = set()
        self._latest: dict[int, str] = {}  # the id of each thread's latest message
        # How often a thread has become free, and how often that or an acknowledgement has happened.
        self.freed = 0
        self.changes = 0

    def before_worker_boot(self, broker: dramatiq.Broker, worker: dramatiq.Worker) -> None:
        self.threads = worker.worker_threads

    def before_worker_shutdown(self, broker: dramatiq.Broker, worker: dramatiq.Worker) -> None:
        self.threads = 0

    def before_process_message(self, broker: dramatiq.Broker, message: Any) -> None:
        with self._changed:
            self._busy.add(threading.get_ident())
            self._latest[threading.get_ident()] = message.message_id

    def after_process_message(
        self, broker: dramatiq.Broker, message: Any, *, result: Any = None, exception: BaseException | None = None
    ) -> None:
        with self._changed:
            self._busy.discard(threading.get_ident())
            self.freed += 1
        self._note_change()

    def after_skip_message(self, broker: dramatiq.Broker, message: Any) -> None:
        self.after_process_message(broker, message)

    def after_ack(self, broker: dramatiq.Broker, message: Any) -> None:
        self._note_change()

    def after_nack(self, broker: dramatiq.Broker, message: Any) -> None:
        self._note_change()

    def _note_change(self) -> None:
        with self._changed:
            self.changes += 1
            self._changed.notify_all()

    def has_idle_thread(self, fetched: Iterable[str]) -> bool:
        """Return whether a thread would still be free if each fetched message that waits for a thread had one."""
        with self._changed:
            begun = set(self._latest.values())
            return len(self._busy) + sum(id not in begun for id in fetched) < self.threads

    def wait_for_change(self, known: int, seconds: float) -> None:
        """Wait until there were more changes than `known`, or for this many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self.changes != known, seconds)


class Lifecycle(Middleware):
    """Starts and stops what an outbox worker process needs: checks, notifier, fallback poller, process report.

    `start` makes the process an outbox worker. It is called when Dramatiq's worker starts, after all modules were
    imported.
    """

    def __init__(self, start: Callable[[dramatiq.Broker], None]) -> None:
        self._start = start
        self._is_prepared = False
        self._poller: FallbackPoller | None = None

    def after_process_boot(self, broker: dramatiq.Broker) -> None:
        self._prepare_process()

    def _prepare_process(self) -> None:
        """Prepare logging and signals, once.

        If another module sets the broker, Dramatiq announces the boot of the process before it imports `jobs`.
        """
        if not self._is_prepared:
            self._is_prepared = True
            logs.hide_statement_parameters()
            if under_dramatiq_cli():  # a worker inside an application's own process leaves its logging as it is
                logs.use_format(loaded_settings().log_format)
            worker_shutdown.prepare()

    def before_worker_boot(self, broker: dramatiq.Broker, worker: dramatiq.Worker) -> None:
        self._prepare_process()
        # Dramatiq swallows ordinary exceptions here.
        try:
            self._start(broker)
        except OutboxError as error:
            raise SystemExit(f"outbox: {error}") from None

    def after_worker_boot(self, broker: dramatiq.Broker, worker: dramatiq.Worker) -> None:
        box = current()
        box.notifier.notify()  # events may have become due while no worker was running
        drains, threads = box.settings.drains, worker.worker_threads
        pool_size = check_pool(box.database, box.registry, drains=drains, threads=threads)
        box.reporter.pool_size = None if pool_size is None else pool_size.to_json()
        box.reporter.start(WORKER)
        self._poller = FallbackPoller(box, broker)
        self._poller.start()

    def before_worker_shutdown(self, broker: dramatiq.Broker, worker: dramatiq.Worker) -> None:
        current().stopping.set()
        if self._poller is not None:
            self._poller.stop()

    def after_worker_shutdown(self, broker: dramatiq.Broker, worker: dramatiq.Worker) -> None:
        # Dramatiq's threads have ended, but long calls to destinations still run, in threads of their own. Dramatiq's
        # processes end without exit handlers, so what is left is done here. A process that goes on after its worker
        # has stopped may still deliver by hand: therefore `stopping` is cleared.
        box = current()
        if self._poller is not None:
            self._poller.join(box.settings.max_run_seconds)
        box.delivery.quarantine.wait_until_idle(box.settings.max_run_seconds)
        box.notifier.flush()
        box.recorder.stop()
        box.reporter.stop()
        box.stopping.clear()
