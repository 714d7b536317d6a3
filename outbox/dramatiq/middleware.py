"""The outbox's Dramatiq middleware. It applies to the outbox's actors and to the application's own.

`Connections`, `ClosedConnections`, `SkippedResults` and `BusyThreads` are added to every broker that the outbox sets
up. `Lifecycle` is added only in an outbox worker.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import dramatiq
from dramatiq.middleware import Middleware

from outbox.core import Outbox
from outbox.current_outbox import current, loaded_settings, outboxes
from outbox.delivery.pool_size import check_pool
from outbox.dramatiq import worker_shutdown
from outbox.dramatiq.actor_names import CLEANUP, DELIVER, actor_of, is_outbox_actor
from outbox.dramatiq.broker_kind import is_redis
from outbox.dramatiq.dramatiq_program import under_dramatiq_cli
from outbox.dramatiq.fallback_poller import FallbackPoller
from outbox.dramatiq.hidden_arguments import hide_arguments_in_logs
from outbox.errors import OutboxError
from outbox.event_loop_thread import event_loop
from outbox.inbox.once_decorator import HANDLER_NAME_ATTRIBUTE, SKIPPED
from outbox.storage.connection_errors import CONNECTION_ERRORS
from outbox.telemetry import logs
from outbox.telemetry.heartbeat import heartbeat_of
from outbox.telemetry.process_reports import WORKER

if TYPE_CHECKING:
    from outbox.dramatiq.wakeup_listener import WakeupListener  # redis is an extra

M = TypeVar("M", bound=Middleware)


def find_middleware(broker: dramatiq.Broker, kind: type[M]) -> M:
    """Return the broker's middleware of this class."""
    return next(middleware for middleware in broker.middleware if isinstance(middleware, kind))


def has_worker(broker: dramatiq.Broker, outbox: str | None = None) -> bool:
    """Return whether an outbox worker in this process consumes messages of the broker, for the outbox of this name."""
    is_running = any(isinstance(middleware, BusyThreads) and middleware.threads > 0 for middleware in broker.middleware)
    return is_running and actor_of(DELIVER, outbox) in broker.actors


class Connections(Middleware):
    """Opens a database connection before each message, unless the application's own middleware has opened one."""

    def before_process_message(self, broker: dramatiq.Broker, message: Any) -> None:
        if is_outbox_actor(message.actor_name) and message.actor_name not in (DELIVER, CLEANUP):
            return  # of a named outbox: it must not wait for the database of another one
        # An error is ignored here: the actor connects again, and that error is reported.
        with contextlib.suppress(*CONNECTION_ERRORS):
            current().database.connect(reuse_if_open=True)


class ClosedConnections(Middleware):
    """Closes or discards the database connection after each message.

    Dramatiq does not manage database connections. Without this middleware, a thread would keep a broken connection. It
    must be first in the broker's list: it is then called last, after a middleware of the application has committed the
    transaction in which it has run the message.
    """

    def after_process_message(
        self, broker: dramatiq.Broker, message: Any, *, result: Any = None, exception: BaseException | None = None
    ) -> None:
        # A connection that was interrupted while it read a result can't be reused, either.
        was_interrupted = exception is not None and not isinstance(exception, Exception)
        is_broken = was_interrupted or isinstance(exception, CONNECTION_ERRORS)
        current().dialect.release_connection(is_broken=is_broken)

    def after_skip_message(self, broker: dramatiq.Broker, message: Any) -> None:
        self.after_process_message(broker, message)


class SkippedResults(Middleware):
    """Makes an actor return None instead of SKIPPED, if the inbox has skipped the message as a duplicate.

    Dramatiq would store SKIPPED as a result, or warn that the result is not used.
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
    """Tracks which worker threads of this process are busy, so that a wake-up is fetched only for a free thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.threads = 0
        self._busy: set[int] = set()
        self._latest: dict[int, str] = {}  # the id of each thread's latest message
        # How many times a thread has become free.
        self.freed = 0
        # How many times a thread has become free, or a message was acknowledged or rejected.
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
        """Return whether there are more threads than busy ones and fetched messages together.

        `fetched` are the ids of the messages that were fetched. Only those that no thread has begun are counted.
        """
        with self._changed:
            begun = set(self._latest.values())
            return len(self._busy) + sum(id not in begun for id in fetched) < self.threads

    def wait_for_change(self, known: int, seconds: float) -> None:
        """Wait until `changes` is no longer `known`, for at most this many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self.changes != known, seconds)


class Lifecycle(Middleware):
    """Starts and stops what an outbox worker needs: checks, notifier, wake-up listener, poller, process report.

    `start` makes the process an outbox worker. It is called when Dramatiq's worker starts. At that time all modules are
    imported.
    """

    def __init__(self, start: Callable[[dramatiq.Broker], None]) -> None:
        self._start = start
        self._is_prepared = False
        self._parent: worker_shutdown.StopWithParent | None = None
        self._threads: list[FallbackPoller | WakeupListener] = []

    def after_process_boot(self, broker: dramatiq.Broker) -> None:
        self._prepare_process()

    def _prepare_process(self) -> None:
        """Prepare logging and signals. A second call does nothing.

        `before_worker_boot` calls this too: if another module sets the broker, Dramatiq calls `after_process_boot`
        before it imports `jobs`, and so before this middleware is added.
        """
        if not self._is_prepared:
            self._is_prepared = True
            logs.hide_statement_parameters()
            if under_dramatiq_cli():  # otherwise the process is the application's, and so is its logging
                logs.use_format(loaded_settings().log_format)
            self._parent = worker_shutdown.prepare()

    def before_worker_boot(self, broker: dramatiq.Broker, worker: dramatiq.Worker) -> None:
        self._prepare_process()
        hide_arguments_in_logs(broker)
        # Dramatiq logs an Exception of a middleware and continues. SystemExit ends the process.
        try:
            self._start(broker)
        except OutboxError as error:
            raise SystemExit(f"outbox: {error}") from None

    def after_worker_boot(self, broker: dramatiq.Broker, worker: dramatiq.Worker) -> None:
        self._heartbeat = heartbeat_of(WORKER, current().settings)
        self._heartbeat.start()
        self._threads = [each for box in outboxes() for each in _started(box, broker, worker)]
        for each in self._threads:
            each.start()
        if self._parent is not None:
            self._parent.worker_has_booted(worker)

    def before_worker_shutdown(self, broker: dramatiq.Broker, worker: dramatiq.Worker) -> None:
        if self._parent is not None:
            self._parent.worker_stops()
        for box in outboxes():
            box.stopping.set()
        for each in self._threads:
            each.stop()

    def after_worker_shutdown(self, broker: dramatiq.Broker, worker: dramatiq.Worker) -> None:
        # Dramatiq's threads have ended, but long calls to destinations may still run in other threads. They are waited
        # for here, because Dramatiq's processes end without running exit handlers. `stopping` is cleared at the end,
        # because a process that continues after its worker has stopped may still call `process_pending_events`.
        boxes = outboxes()
        for each in self._threads:
            each.join(each.box.settings.max_run_seconds)
        for box in boxes:
            box.delivery.quarantine.wait_until_idle(box.settings.max_run_seconds)
        event_loop.stop()
        for box in boxes:
            box.notifier.flush()
            box.delivery.failure_hooks.flush()
            box.recorder.stop()
            box.reporter.stop()
            box.stopping.clear()
        self._heartbeat.stop()


def _started(box: Outbox, broker: dramatiq.Broker, worker: dramatiq.Worker) -> list[FallbackPoller | WakeupListener]:
    """Notify and report for an outbox of a worker that has started; return its threads, which are still to start."""
    box.notifier.notify()  # events may have become due while no worker was running
    drains = box.settings.drains
    # Threads that listen drain besides Dramatiq's.
    threads = worker.worker_threads + (drains if is_redis(broker) else 0)
    pool_size = check_pool(box.database, box.registry, drains=drains, threads=threads)
    box.reporter.pool_size = None if pool_size is None else pool_size.to_json()
    box.reporter.start(WORKER)
    listeners = _listeners(box, broker, keeps_connection=pool_size is None or not pool_size.too_small)
    return [FallbackPoller(box, broker), *listeners]


def _listeners(box: Outbox, broker: dramatiq.Broker, *, keeps_connection: bool) -> list[WakeupListener]:
    """Return what receives wake-ups directly from Redis, if this broker uses it."""
    if not is_redis(broker):
        return []
    from outbox.dramatiq.wakeup_listener import WakeupListener  # redis is an extra

    return [WakeupListener(box, broker, keeps_connection=keeps_connection)]
