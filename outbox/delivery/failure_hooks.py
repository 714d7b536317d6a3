"""Call the hooks of `outbox.on_failure` after failed deliveries, in a thread of their own.

Hooks are code of the application, such as a report to Sentry. A hook that raises is logged. A hook that hangs holds up
this thread and the hooks behind it, and nothing else: beyond `most_waiting` failures are dropped, and logged.

Where deliveries use no threads (inline dispatch, SQLite in memory), hooks don't either: a debugger can follow them.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress

import peewee

from outbox.background_thread import BackgroundThread
from outbox.delivery.batch import Delivery
from outbox.destinations.failure import Failure, FailureHook
from outbox.destinations.handler import CALL_ERRORS
from outbox.errors import describe
from outbox.storage.models import FAILED
from outbox.storage.progress import NEW, ProgressEntry, parse

logger = logging.getLogger(__name__)

# How many failures may wait for the hooks. Each holds an event, and may hold an exception with its frames.
MOST_WAITING = 1_000
# The thread ends if nothing has failed for this long.
LINGER_SECONDS = 5.0
# How long a process that ends, and a call of `process_pending_events`, waits for hooks.
FLUSH_SECONDS = 5.0


class FailureHooks:
    """Calls the hooks of one outbox."""

    def __init__(
        self, database: peewee.Database, *, runs_in_background: bool, most_waiting: int = MOST_WAITING
    ) -> None:
        self._database = database
        self._runs_in_background = runs_in_background
        self._most_waiting = most_waiting
        # Entered around the calls: hooks find the outbox whose event has failed.
        self.around_calls: Callable[[], AbstractContextManager[object]] = nullcontext
        self._thread = BackgroundThread("outbox-on-failure", self._run, after_fork=self._forget)
        self._logged: set[tuple[FailureHook, type[BaseException]]] = set()
        self._forget()

    def _forget(self) -> None:
        """Set up the state without failures, in a forked child too: the parent reports those that it has."""
        self._waiting: deque[tuple[Sequence[FailureHook], Failure]] = deque()
        self._is_calling = False
        self._dropped = 0

    def report(self, hooks: Sequence[FailureHook], failures: Iterable[Failure]) -> None:
        """Call the hooks with each failure, now or in the background."""
        for failure in failures:
            if not self._runs_in_background:
                self._call(hooks, failure)
                continue
            with self._thread.changed:
                if len(self._waiting) >= self._most_waiting:
                    self._drop()
                    continue
                self._waiting.append((hooks, failure))
                self._thread.changed.notify_all()
                with suppress(RuntimeError):  # no thread can be started: the next failure tries again
                    self._thread.start()

    def flush(self, seconds: float = FLUSH_SECONDS) -> bool:
        """Wait until the hooks have been called with all failures; return whether they were."""
        with self._thread.changed:
            return self._thread.changed.wait_for(lambda: not self._waiting and not self._is_calling, seconds)

    def _drop(self) -> None:
        self._dropped += 1
        if self._dropped == 1:
            logger.error(
                "The hooks of outbox.on_failure are behind by %d failures, or one of them hangs: further failures are "
                "not reported to them until they go on. Deliveries are not affected.",
                self._most_waiting,
            )

    def _run(self, stopped: threading.Event) -> None:
        while self._thread.wait_for_work(lambda: bool(self._waiting), LINGER_SECONDS):
            with self._thread.changed:
                hooks, failure = self._waiting.popleft()
                self._is_calling, self._dropped = True, 0
            try:
                with self._thread.fork_lock:
                    self._call(hooks, failure)
                    if not self._database.is_closed():  # a hook has opened a connection for this thread
                        self._database.close()
            except BaseException:
                # Otherwise the thread would end, and the failures after this one would wait for the next start.
                logger.exception("A hook of outbox.on_failure was interrupted; the other hooks are called")
            finally:
                del hooks, failure  # the exception's frames hold what they refer to
                with self._thread.changed:
                    self._is_calling = False
                    self._thread.changed.notify_all()

    def _call(self, hooks: Sequence[FailureHook], failure: Failure) -> None:
        for hook in hooks:
            if failure.is_final or hook.each_attempt:
                try:
                    with self.around_calls():
                        hook.function(failure)
                except CALL_ERRORS as error:
                    self._log(hook, failure, error)

    def _log(self, hook: FailureHook, failure: Failure, error: BaseException) -> None:
        """Log the first error of each type of a hook with its traceback, and further ones at DEBUG."""
        is_first = (hook, type(error)) not in self._logged
        self._logged.add((hook, type(error)))
        logger.log(
            logging.ERROR if is_first else logging.DEBUG,
            "A hook of outbox.on_failure, %s, raised %s for %r at %s; further errors of this type are logged at DEBUG",
            getattr(hook.function, "__qualname__", hook.function),
            describe(error),
            failure.event,
            failure.destination,
            exc_info=error if is_first else None,
        )


def failures_of(delivery: Delivery) -> Iterator[Failure]:
    """Yield what has failed since the event was claimed: for good, or at an attempt that was made."""
    before = parse(delivery.event.progress)
    exceptions = delivery.exceptions or {}
    for name, entry in delivery.progress.items():
        is_final = entry.state == FAILED and before.get(name, NEW).state != FAILED
        if is_final or (name in delivery.begun and _has_failed_now(before.get(name, NEW), entry)):
            error = entry.error or "unknown"
            yield Failure(delivery.event, name, error, exceptions.get(name), entry.attempts, is_final)


def _has_failed_now(before: ProgressEntry, entry: ProgressEntry) -> bool:
    return entry.is_open and (entry.attempts > before.attempts or entry.waits > before.waits)
