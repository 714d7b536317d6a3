"""Run a share in the thread that drains: the fast way for an event that comes alone.

Usually each share runs in a thread of its own (`share_threads`), so that a slow destination does not keep a drain from
claiming the next batch. Starting a thread and switching to it takes about as long as the claim, which matters when a
single event has just been committed. The threads that wait for wake-ups need not do that: after the claim, such a
thread lets another one wait for the next wake-up, and then runs the share itself.

It does so only if nothing is left for its drain to do: the claim returned fewer events than it asked for, they all go
to one destination, none has an ordering key, and no wake-up was refused since the claim began. The drain's slot is
released before the share runs, so a slow destination takes no slot. All else is as in a share's own thread: the lease
is renewed, outcomes are settled while the share runs, and a call that takes too long is interrupted.
"""

from __future__ import annotations

from collections.abc import Callable

from outbox.delivery.batch import Batch, Completion
from outbox.delivery.context import DeliveryContext
from outbox.delivery.drain_limit import Slot
from outbox.delivery.share import Share
from outbox.delivery.share_threads import ShareThread, interrupt_when_overdue
from outbox.throttle.delivery_mode import DeliveryMode


class DrainThread:
    """The thread of one drain, if it may run a share.

    `hand_over` lets another thread wait for wake-ups. It is called once or more, each time before this thread may be
    occupied for long.
    """

    def __init__(self, hand_over: Callable[[], None]) -> None:
        self._hand_over = hand_over
        self._slot: Slot | None = None
        self._run: Callable[[], None] | None = None

    def drains_with(self, slot: Slot) -> None:
        """Remember the slot that the drain has acquired."""
        self._slot = slot

    def keep(self, context: DeliveryContext, batch: Batch, shares: list[Share], completion: Completion) -> bool:
        """Decide whether this thread runs the batch itself; if so, release the drain's slot.

        In both cases another thread waits for wake-ups from now on.
        """
        self._hand_over()
        if len(shares) != 1 or batch.full or batch.has_keys or self._slot is None or not self._slot.release():
            return False
        thread = ShareThread(context, shares[0], DeliveryMode.DRAIN)
        completion.expect(1)
        interrupt_when_overdue(batch, [thread], completion)
        self._run = lambda: thread.run_here(completion.share_ended)
        return True

    def run_kept(self) -> bool:
        """Run the share that this thread has kept; return whether there was one."""
        if self._run is None:
            return False
        self._run()
        return True
