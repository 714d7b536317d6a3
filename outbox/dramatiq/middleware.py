"""What a Dramatiq worker needs around our actors - and around the user's own."""

from __future__ import annotations

import contextlib
import functools
import gc
import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import dramatiq
from dramatiq.middleware import Middleware

from outbox.current_outbox import current, loaded_settings
from outbox.delivery.pool_size import check_pool
from outbox.dramatiq import stopping
from outbox.dramatiq.fallback_poller import FallbackPoller
from outbox.dramatiq.names import DELIVER
from outbox.errors import OutboxError
from outbox.inbox.inbox import MARK, SKIPPED
from outbox.storage.dialect import CONNECTION_ERRORS
from outbox.telemetry import logs
from outbox.telemetry.process_reports import WORKER

M = TypeVar("M", bound=Middleware)


def find(broker: dramatiq.Broker, kind: type[M]) -> M:
    """The broker's middleware of one kind."""
    return next(middleware for middleware in broker.middleware if isinstance(middleware, kind))


def has_worker(broker: dramatiq.Broker) -> bool:
    """Return whether an outbox worker of this process takes messages from the broker."""
    is_running = any(isinstance(middleware, Occupancy) and middleware.threads > 0 for middleware in broker.middleware)
    return is_running and DELIVER in broker.actors


class Connections(Middleware):
    """A working database connection for every message, returned afterwards, discarded after an interrupt.

    Dramatiq knows nothing of databases: without this, a thread whose connection broke stays broken.
    """

    def before_process_message(self, broker: dramatiq.Broker, message: Any) -> None:
        # The actor will try for itself, and say in its own words that it can't.
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
            # Raised between any two instructions, it can have left a transaction open, or half an answer unread.
            box.dialect.discard_connection()
        else:
            box.database.close()

    def after_skip_message(self, broker: dramatiq.Broker, message: Any) -> None:
        self.after_process_message(broker, message)


class Skips(Middleware):
    """To Dramatiq, an actor whose message the inbox skips has returned nothing.

    Of any other answer it would warn that nobody wants it, or try to keep it among the results.
    """

    def after_declare_actor(self, broker: dramatiq.Broker, actor: dramatiq.Actor[Any, Any]) -> None:
        function = actor.fn
        if not hasattr(function, MARK):
            return

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            return None if result is SKIPPED else result

        actor.fn = call


class Occupancy(Middleware):
    """Which of this process's threads are busy, so that no wake-up is fetched that nobody here could answer."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.threads = 0
        self._busy: set[int] = set()
        self._begun: dict[int, str] = {}  # each thread's latest message
        # How often a thread has become free, and how often anything has changed.
        self.freed = 0
        self.changes = 0

    def before_worker_boot(self, broker: dramatiq.Broker, worker: dramatiq.Worker) -> None:
        self.threads = worker.worker_threads

    def before_worker_shutdown(self, broker: dramatiq.Broker, worker: dramatiq.Worker) -> None:
        self.threads = 0

    def before_process_message(self, broker: dramatiq.Broker, message: Any) -> None:
        with self._changed:
            self._busy.add(threading.get_ident())
            self._begun[threading.get_ident()] = message.message_id

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
        """Whether a thread has nothing to do, not even one of these messages that it has yet to begin."""
        with self._changed:
            begun = set(self._begun.values())
            return len(self._busy) + sum(id not in begun for id in fetched) < self.threads

    def wait_for_change(self, known: int, seconds: float) -> None:
        """Wait until there were more changes than the caller knows of."""
        with self._changed:
            self._changed.wait_for(lambda: self.changes != known, seconds)


class Lifecycle(Middleware):
    """Starting with everything in place, and stopping without losing a batch.

    `start` makes the process an outbox worker. It is called when Dramatiq's worker starts, with all modules imported.
    """

    def __init__(self, start: Callable[[dramatiq.Broker], None]) -> None:
        self._start = start
        self._is_prepared = False
        self._poller: FallbackPoller | None = None

    def after_process_boot(self, broker: dramatiq.Broker) -> None:
        self._prepare_process()

    def _prepare_process(self) -> None:
        """Once. If another module brings the broker, Dramatiq tells that the process boots before it imports `jobs`."""
        if not self._is_prepared:
            self._is_prepared = True
            logs.rewrite(loaded_settings().log_format)
            stopping.prepare()

    def before_worker_boot(self, broker: dramatiq.Broker, worker: dramatiq.Worker) -> None:
        self._prepare_process()
        # Dramatiq swallows ordinary exceptions here.
        try:
            self._start(broker)
        except OutboxError as error:
            raise SystemExit(f"outbox: {error}") from None

    def after_worker_boot(self, broker: dramatiq.Broker, worker: dramatiq.Worker) -> None:
        # What was imported stays: the garbage collector need not go through it again and again under load.
        gc.collect()
        gc.freeze()
        # Whatever was due while nobody was here.
        box = current()
        box.notifier.notify()
        check_pool(box, worker.worker_threads)
        box.reporter.start(WORKER)
        self._poller = FallbackPoller(box, broker)
        self._poller.start()

    def before_worker_shutdown(self, broker: dramatiq.Broker, worker: dramatiq.Worker) -> None:
        current().stopping.set()
        if self._poller is not None:
            self._poller.stop()

    def after_worker_shutdown(self, broker: dramatiq.Broker, worker: dramatiq.Worker) -> None:
        # Its threads are done, but calls that take long go on by themselves. And Dramatiq's processes end without
        # running exit handlers. In one that goes on, deliveries by hand do too.
        box = current()
        if self._poller is not None:
            self._poller.join(box.settings.max_run_seconds)
        box.quarantine.wait_until_idle(box.settings.max_run_seconds)
        box.notifier.flush()
        box.recorder.stop()
        box.reporter.stop()
        box.stopping.clear()
