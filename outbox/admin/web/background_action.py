"""Run an operator's action in a thread, and wait for it only a short time.

An action on many events can take minutes. The browser should not wait so long, so the action goes on in its thread
after the response, and the audit page shows its progress.
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
    """Run the action; return how many events it has changed, or None if it still runs after `wait_seconds`.

    If the process ends before the action does, the batches that were committed stay changed and the other events are
    unchanged.
    """
    done: list[int] = [0]
    errors: list[Exception] = []
    responded = threading.Event()

    def run() -> None:
        try:
            for so_far in apply_action.apply(box.dialect, box.notifier.notify_after_commit, action, filter, who=who):
                done[0] = so_far
        except Exception as error:
            errors.append(error)
            if responded.is_set():
                logger.exception(
                    "The dashboard's action %s by %s stopped after %d events. The other events are unchanged; run it "
                    "again for them.",
                    action.name,
                    who,
                    done[0],
                )

    thread = threading.Thread(target=run, name=f"outbox-{action.name}", daemon=True)
    thread.start()
    thread.join(wait_seconds)
    if thread.is_alive():
        responded.set()
        return None
    if errors:
        raise errors[0]
    return done[0]
