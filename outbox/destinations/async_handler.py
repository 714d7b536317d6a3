"""A handler that is an `async def` function: its calls are tasks of the process's event loop.

The thread of a share gives the loop as many events as the destination's limits allow, and yields the outcomes in the
order in which the calls end. Leases, attempts, order and the settling of outcomes are those of every destination.

Calls that have not ended shortly before the limit of OUTBOX_MAX_RUN_SECONDS are cancelled. If a call ignores that, the
share's thread waits for it, as it would for a blocking call that never returns. So the destination's throttle notices
such a call, too (`throttle/stuck_calls.py`).
"""

from __future__ import annotations

import asyncio
import logging
import queue
import time
from asyncio import CancelledError
from collections.abc import Iterable, Iterator
from types import FrameType

from outbox.destinations.handler import CALL_ERRORS, Handler
from outbox.destinations.handler_result import check_handler_result
from outbox.destinations.outcome import DELIVERED_OUTCOME, Outcome, Retry
from outbox.destinations.protocol import Lease
from outbox.event_loop_thread import event_loop
from outbox.events.context import context
from outbox.events.event import Event
from outbox.telemetry import tracing

logger = logging.getLogger(__name__)

# How many calls of a batch are under way at the same time, unless the handler has a lower `concurrency`.
AT_ONCE = 100
# The thread waits in pieces of this length, because an exception that is raised in it takes effect only in between.
PIECE_SECONDS = 0.25
# How long before the limit the calls are cancelled, so that the outcomes of those that end are still recorded; at most
# this part of the time that is left.
CANCEL_BEFORE_SECONDS = 1.0
CANCEL_BEFORE_PART = 0.1


class AsyncHandler(Handler):
    """Calls an `async def` function for many events at the same time, on the event loop of the process."""

    is_async = True
    at_once = AT_ONCE
    _is_named_as_blocking = False

    def deliver(self, events: Iterable[Event], lease: Lease) -> Iterator[tuple[Event, Outcome]]:
        """Call the function for each event, as many at the same time as allowed; yield the outcomes as they come."""
        _refuse_on_the_loop()
        cancel_at = time.monotonic() + lease.seconds_left
        cancel_at -= min(CANCEL_BEFORE_SECONDS, CANCEL_BEFORE_PART * lease.seconds_left)
        calls = Calls(self, cancel_at)
        waiting = iter(events)
        has_more = True
        try:
            while True:
                while has_more and not calls.are_late and calls.number < min(max(1, lease.at_once), self.at_once):
                    event = next(waiting, None)
                    if event is None:
                        has_more = False
                    else:
                        calls.begin(event)
                if not calls.number:
                    return
                # All outcomes are yielded before the next event is taken: after one of them there may be no more.
                for call in calls.wait():
                    yield call.event, self._outcome(call)
        finally:
            calls.cancel_all()

    def call(self, event: Event) -> None:
        """Call the function on the event loop, and wait for its end. Errors are raised."""
        _refuse_on_the_loop()
        calls = Calls(self, float("inf"))
        try:
            calls.begin(event)
            (call,) = calls.wait()
        finally:
            calls.cancel_all()
        if call.error is not None:
            raise call.error

    async def run(self, event: Event) -> None:
        """Await the function in the event's context (correlation id, tenant, span)."""
        self.read(event)
        with context(correlation_id=event.correlation_id, tenant_id=event.tenant_id), tracing.inside(event):
            result = await self.function(event)
        if result is not None:
            check_handler_result(self.name, result)

    def _outcome(self, call: Call) -> Outcome:
        error = call.error
        if error is None:
            return DELIVERED_OUTCOME
        if call.is_late and isinstance(error, CancelledError):
            return Retry("the call took longer than OUTBOX_MAX_RUN_SECONDS, and was cancelled", exception=error)
        if not isinstance(error, CALL_ERRORS):
            raise error
        return self.outcome_of(call.event, error)

    def name_blocking_call(self, frame: FrameType) -> None:
        """Log a warning that this handler blocks the loop: once, and where."""
        if not self._is_named_as_blocking:
            self._is_named_as_blocking = True
            code = frame.f_code
            logger.warning(
                "%s blocks the event loop in %s (%s:%d): no other async handler of this process runs meanwhile, and "
                "this one can't be cancelled. Await something that does not block, or `asyncio.to_thread(…)`.",
                self.name,
                code.co_qualname if hasattr(code, "co_qualname") else code.co_name,
                code.co_filename,
                frame.f_lineno,
            )


class Call:
    """One call of an async handler."""

    def __init__(self, handler: AsyncHandler, event: Event, ended: queue.SimpleQueue[Call]) -> None:
        self._handler = handler
        self._ended = ended
        self._task: asyncio.Task[None] | None = None
        self._is_cancelled = False
        self.event = event
        # The exception that it has ended with.
        self.error: BaseException | None = None
        self.has_ended = False
        # Whether it was cancelled because its time was up.
        self.is_late = False

    def begin(self) -> None:
        event_loop.create_task(self._run, self._created)

    def cancel(self) -> None:
        """Cancel the task; the thread of the loop does it."""
        event_loop.call_soon(self._cancel)

    async def _run(self) -> None:
        # No exception leaves the task: SystemExit, for one, would end the loop.
        try:
            await self._handler.run(self.event)
        except GeneratorExit:
            raise
        except BaseException as error:
            self.error = error

    def _created(self, task: asyncio.Task[None]) -> None:
        self._task = task
        task.add_done_callback(self._done)
        if self._is_cancelled:
            task.cancel()

    def _cancel(self) -> None:
        self._is_cancelled = True
        if self._task is not None:
            self._task.cancel()

    def _done(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():  # before it had begun
            self.error = CancelledError()
        self.has_ended = True
        self._ended.put(self)


class Calls:
    """The calls of a handler that one thread has begun, and waits for."""

    def __init__(self, handler: AsyncHandler, cancel_at: float) -> None:
        self._handler = handler
        self._cancel_at = cancel_at
        self._under_way: set[Call] = set()
        self._ended: queue.SimpleQueue[Call] = queue.SimpleQueue()
        # Whether the time was up, and the calls were cancelled.
        self.are_late = False

    @property
    def number(self) -> int:
        return len(self._under_way)

    def begin(self, event: Event) -> None:
        call = Call(self._handler, event, self._ended)
        call.begin()
        self._under_way.add(call)

    def wait(self) -> list[Call]:
        """Wait until a call has ended; return all that have."""
        while True:
            left = self._cancel_at - time.monotonic()
            if left <= 0 and not self.are_late:
                self._cancel_late()
            try:
                ended = [self._ended.get(timeout=PIECE_SECONDS if self.are_late else min(left, PIECE_SECONDS))]
            except queue.Empty:
                _name_blocking_call()
                continue
            while not self._ended.empty():
                ended.append(self._ended.get())
            self._under_way.difference_update(ended)
            return ended

    def cancel_all(self) -> None:
        """Cancel the calls that are under way, and wait for their end: until then they occupy their slots."""
        for call in self._under_way:
            call.cancel()
        # Count the tasks, not what the queue returned: this runs after an exception, which may have been raised just
        # after the queue returned a call.
        while not all(call.has_ended for call in self._under_way):
            try:
                self._ended.get(timeout=PIECE_SECONDS)
            except queue.Empty:
                _name_blocking_call()

    def _cancel_late(self) -> None:
        self.are_late = True
        for call in self._under_way:
            call.is_late = True
            call.cancel()


def _refuse_on_the_loop() -> None:
    if event_loop.is_current:
        raise RuntimeError(
            "An async handler can't deliver events that go to async handlers: it would wait for the loop on which it "
            "runs. Run it in a thread: await asyncio.to_thread(…)."
        )


def _name_blocking_call() -> None:
    """Find the handler that blocks the loop, if one does, by the frames of the loop's thread."""
    innermost = frame = event_loop.find_blocking_call()
    while frame is not None and innermost is not None:
        if frame.f_code is AsyncHandler.run.__code__:
            frame.f_locals["self"].name_blocking_call(innermost)
            return
        frame = frame.f_back
