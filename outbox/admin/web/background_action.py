"""Run an operator's action in a thread, and wait for it only a short time.

An action on many events can take minutes. The browser should not wait that long, so the action continues in its thread
after the response, and the audit log shows its progress. If the process ends before that, the action stops after its
current batch, and the audit log says so.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable, Generator

from outbox.core import Outbox
from outbox.operations import apply_action
from outbox.operations.actions import Action
from outbox.operations.filters import Filter
from outbox.telemetry.audit import Interrupted, Operator

logger = logging.getLogger(__name__)

# The browser waits this long for the response.
WAIT_SECONDS = 3.0
# How long the end of the process waits for the current batches of running actions.
STOP_SECONDS = 10.0


class BackgroundActions:
    """The actions of one dashboard that are running."""

    def __init__(self) -> None:
        self._running: set[threading.Thread] = set()
        self._stopping = threading.Event()
        self._is_stopped_at_exit = False

    def run(
        self, box: Outbox, action: Action, filter: Filter, operator: Operator, wait_seconds: float = WAIT_SECONDS
    ) -> int | None:
        """Run the action; return how many events it has changed, or None if it still runs after `wait_seconds`."""
        notify = box.notifier.notify_after_commit
        return self.run_work(
            action.name,
            operator,
            lambda: apply_action.apply(box.dialect, notify, action, filter, operator=operator),
            wait_seconds,
        )

    def run_work(
        self,
        name: str,
        operator: Operator,
        begin: Callable[[], Generator[int]],
        wait_seconds: float = WAIT_SECONDS,
    ) -> int | None:
        """Run the generator that `begin` returns; return its last value, or None if it still runs after `wait_seconds`.

        If the process ends before the action does, the batches that were committed stay changed and the other events
        are unchanged.
        """
        changed = 0
        errors: list[Exception] = []
        wait_is_over = threading.Event()

        def run() -> None:
            nonlocal changed
            try:
                for total in self._until_stopping(begin()):
                    changed = total
            except Interrupted as error:
                errors.append(error)
            except Exception as error:
                errors.append(error)
                if wait_is_over.is_set():  # otherwise the caller raises the error
                    logger.exception(
                        "The dashboard's action %s by %s stopped after %d events. The other events are unchanged; run "
                        "it again for them.",
                        name,
                        operator.name,
                        changed,
                    )
            finally:
                self._running.discard(threading.current_thread())

        thread = threading.Thread(target=run, name=f"outbox-{name}", daemon=True)
        if not self._is_stopped_at_exit:
            self._is_stopped_at_exit = True
            atexit.register(self.stop)
        self._running.add(thread)
        thread.start()
        thread.join(wait_seconds)
        if thread.is_alive():
            wait_is_over.set()
            return None
        if errors:
            raise errors[0]
        return changed

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Stop the running actions after their current batches, and wait for them, but only for a limited time."""
        self._stopping.set()
        for thread in tuple(self._running):
            thread.join(seconds)

    def _until_stopping(self, work: Generator[int]) -> Generator[int]:
        for total in work:
            yield total
            if self._stopping.is_set():
                work.throw(Interrupted("the dashboard was stopped"))
