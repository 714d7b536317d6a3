"""Run the shares of a batch at the same time, each in a thread of its own.

A share is the part of a batch that goes to one destination. In a drain the worker waits for the shares for a tenth of a
second only. A share that takes longer keeps running, settles its own outcomes, and its lease is renewed, while the
worker claims the next batch. So a slow destination does not delay the others, and a call that never returns occupies
one thread, not the worker. The throttle of each destination limits how many threads its shares may have.

A call that takes longer than OUTBOX_MAX_RUN_SECONDS is interrupted: Python can raise an exception in another thread,
between two of its instructions. A call that is inside a system call gets the exception only when the system call
returns. The worker does not wait for that: such a thread may run until the process ends.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import logging
import queue
import threading
import time
from collections.abc import Callable
from functools import partial

from outbox.delivery.batch import Batch, Completion
from outbox.delivery.context import DeliveryContext
from outbox.delivery.partial_progress import write_partial_progress
from outbox.delivery.settle import settle
from outbox.delivery.share import Share
from outbox.delivery.share_connection import connect
from outbox.errors import describe
from outbox.throttle.delivery_mode import DeliveryMode

logger = logging.getLogger(__name__)

# The worker's thread waits in pieces of this length, because an exception that Dramatiq raises in it (at a time limit
# or a shutdown) takes effect only between two instructions.
PIECE_SECONDS = 0.5


class Overdue(BaseException):
    """Raised in a thread whose call has taken longer than OUTBOX_MAX_RUN_SECONDS."""

    def __str__(self) -> str:
        return "the call took longer than OUTBOX_MAX_RUN_SECONDS"


class ShareThread:
    """The thread of one share."""

    def __init__(self, context: DeliveryContext, share: Share, mode: DeliveryMode) -> None:
        self._context = context
        self.share = share
        self._mode = mode
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._was_interrupted = False
        self.has_ended = False
        # The exception that ended the share early: a time limit, or a shutdown.
        self.stopped_by: BaseException | None = None

    def start(self, on_change: Callable[[], None], on_end: Callable[[], None]) -> None:
        """Start the thread. It calls `on_change` when the share ends or starts to wait, and `on_end` last of all."""
        self.share.on_wait = on_change
        arguments = (on_change, on_end)
        self._thread = threading.Thread(target=self._run, args=arguments, name=self._thread_name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # no memory for one more thread
            logger.warning("%s: could not start a thread, so its events are given back: %s", self.share.name, error)
            self.has_ended = True
            on_end()

    def run_here(self, on_end: Callable[[], None]) -> None:
        """Run the share in the calling thread instead, and then call `on_end`.

        The share gets a copy of the thread's context variables, and the thread a name, as it would with its own thread.
        """
        self._thread = thread = threading.current_thread()
        name, thread.name = thread.name, self._thread_name
        self.share.settle_while_running()
        try:
            contextvars.copy_context().run(self._run, lambda: None, on_end)
        finally:
            thread.name = name

    @property
    def _thread_name(self) -> str:
        return f"outbox-to-{self.share.name}"

    def interrupt(self) -> None:
        """Raise Overdue in the thread, once."""
        with self._lock:
            if self._thread is None or self._was_interrupted or self.has_ended:
                return
            self._was_interrupted = True
            _raise_in(self._thread, Overdue)

    def _end(self) -> None:
        """Mark the share as ended: from now on the thread is not interrupted, because it may do other work."""
        with self._lock:
            self.has_ended = True
            if self._was_interrupted and self._thread is not None:
                _raise_in(self._thread, None)  # in case that it was not raised yet

    def _run(self, on_change: Callable[[], None], on_end: Callable[[], None]) -> None:
        database = self._context.dialect.database
        try:
            reason = None if database.autoconnect else connect(self._context)
            if reason is None:
                self.share.run(self._mode)
            else:
                self.share.put_off_without_connection(reason)
        except BaseException as stop:
            self.stopped_by = stop
            if self._mode is DeliveryMode.DRAIN:
                logger.error("%s was interrupted: %s", self.share.name, describe(stop))  # noqa: TRY400  (not our error)
        finally:
            self._end()
            on_change()
            self.share.settle_if_left_behind()
            if self.share.left_behind:
                write_partial_progress(self._context, self.share.batch)
            on_end()
            if not database.is_closed():
                database.close()


def _raise_in(thread: threading.Thread, exception: type[BaseException] | None) -> None:
    """Raise the exception in the thread, between two of its instructions; None takes back one that was not raised."""
    if thread.ident is not None:
        raised = None if exception is None else ctypes.py_object(exception)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), raised)


def interrupt_when_overdue(batch: Batch, threads: list[ShareThread], completion: Completion) -> None:
    """Interrupt these shares, and those of the batch that were started earlier, when the batch takes too long."""
    batch.on_overdue = partial(_interrupt_all, threads, completion, batch.on_overdue)


def run_in_threads(
    context: DeliveryContext, batch: Batch, shares: list[Share], mode: DeliveryMode, completion: Completion
) -> None:
    """Run the shares, and settle what is finished as each of them ends, until all have ended or the time is up."""
    threads = [ShareThread(context, share, mode) for share in shares]
    changes: queue.SimpleQueue[None] = queue.SimpleQueue()
    completion.expect(len(threads))
    interrupt_when_overdue(batch, threads, completion)
    for thread in threads:
        thread.start(lambda: changes.put(None), completion.share_ended)
    if mode is DeliveryMode.DRAIN:
        ends_at = time.monotonic() + context.waits.drain_seconds
    else:
        ends_at = batch.started_at + context.settings.max_run_seconds
    try:
        while _are_worth_waiting_for(threads) and (left := ends_at - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                changes.get(timeout=min(left, PIECE_SECONDS))
                settle(context, batch)
            if time.monotonic() - batch.started_at >= context.waits.drain_seconds:
                write_partial_progress(context, batch)
        if mode is DeliveryMode.ONE_BATCH:
            _interrupt(threads, completion)
    except BaseException:
        _interrupt(threads, completion)
        raise
    finally:
        for share in shares:
            share.left_behind = True
        settle(context, batch)
        write_partial_progress(context, batch)
    for thread in threads:
        if thread.stopped_by is not None and mode is DeliveryMode.ONE_BATCH:
            raise thread.stopped_by


def _are_worth_waiting_for(threads: list[ShareThread]) -> bool:
    """Return whether a share is running that does not wait for its destination's throttle.

    A single share is waited for in any case, because it delays no other share, and the next batch would likely be for
    the same destination.
    """
    return any(not thread.has_ended and (len(threads) == 1 or not thread.share.is_waiting) for thread in threads)


def _interrupt_all(threads: list[ShareThread], completion: Completion, earlier: Callable[[], None]) -> None:
    """Interrupt these shares, and those of the same batch that were started earlier."""
    earlier()
    _interrupt(threads, completion)


def _interrupt(threads: list[ShareThread], completion: Completion) -> None:
    """Interrupt the shares that are still running, and treat the batch as complete."""
    for thread in threads:
        if not thread.has_ended:
            logger.error("%s has not returned in time and is interrupted", thread.share.name)
            thread.interrupt()
    completion.abandon()
