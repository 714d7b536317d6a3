"""Run an operator's action in a thread, and wait for it only a short time.

An action on many events can take minutes. The browser should not wait that long, so the action continues in its thread
after the response, and the audit log shows its progress.
"""

from __future__ import annotations

import logging
import threading

from outbox.core import Outbox
from outbox.operations import apply_action
from outbox.operations.actions import Action
from outbox.operations.filters import Filter

logger = logging.getLogger(__name__)

# The browser waits this long for the response.
WAIT_SECONDS = 3.0


def run_action(box: Outbox, action: Action, filter: Filter, who: str, wait_seconds: float = WAIT_SECONDS) -> int | None:
    """Run the action; return how many events it has changed, or None if it is still running after `wait_seconds`.

    If the process ends before the action does, the batches that were committed stay changed and the other events are
    unchanged.
    """
    changed = 0
    errors: list[Exception] = []
    wait_is_over = threading.Event()

    def run() -> None:
        nonlocal changed
        try:
            for total in apply_action.apply(box.dialect, box.notifier.notify_after_commit, action, filter, who=who):
                changed = total
        except Exception as error:
            errors.append(error)
            if wait_is_over.is_set():  # otherwise the caller raises the error
                logger.exception(
                    "The dashboard's action %s by %s stopped after %d events. The other events are unchanged; run it "
                    "again for them.",
                    action.name,
                    who,
                    changed,
                )

    thread = threading.Thread(target=run, name=f"outbox-{action.name}", daemon=True)
    thread.start()
    thread.join(wait_seconds)
    if thread.is_alive():
        wait_is_over.set()
        return None
    if errors:
        raise errors[0]
    return changed
