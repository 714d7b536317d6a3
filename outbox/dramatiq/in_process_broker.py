"""The broker of `outbox up`, which runs everything in one process, without a server.

Its queues are in memory, so whatever is in them is lost when the process ends. Messages that were stored as jobs are
safe, because a job counts as delivered only when its actor has run (`job_completion.py`). What Dramatiq's middleware
enqueues after a run (a retry, the next step of a pipeline, the callback of a group) is stored as a job, too.
"""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from typing import Any

import dramatiq
import peewee
from dramatiq.brokers.stub import StubBroker

from outbox.current_outbox import current, is_configured
from outbox.dramatiq.actor_names import is_outbox_actor
from outbox.dramatiq.enqueue_now import install_hooks, is_enqueueing_stored, is_handling_signal
from outbox.dramatiq.job_completion import JobCompletion
from outbox.dramatiq.send import store_message
from outbox.errors import OutboxError

logger = logging.getLogger(__name__)

DEAD_LETTERS_KEPT = 100


class InProcessBroker(StubBroker):
    """Dramatiq's stub broker, without its limits for a long-running process.

    It keeps a limited number of dead letters, and stores what would be lost with the process.
    """

    def __init__(self) -> None:
        super().__init__()
        self.dead_letters_by_queue: Any = defaultdict(lambda: deque(maxlen=DEAD_LETTERS_KEPT))
        self.completion = JobCompletion()
        # First in the list: its `after_process_message` is then called last, when other middleware has stored a retry.
        self.add_middleware(self.completion)
        self.middleware.insert(0, self.middleware.pop())
        install_hooks(self)

    def enqueue(self, message: dramatiq.Message[Any], *, delay: int | None = None) -> dramatiq.Message[Any]:
        """Put the message into its queue, or store it as a job if middleware has sent it."""
        if self._should_store(message):
            try:
                with current().database.atomic():
                    return store_message(current(), self, message, delay=delay)
            except (OutboxError, peewee.PeeweeException) as error:
                logger.warning("Could not store the next message to %s, so it is kept in memory: %s", message, error)
        return super().enqueue(message, delay=delay)

    def _should_store(self, message: dramatiq.Message[Any]) -> bool:
        if is_outbox_actor(message.actor_name) or is_enqueueing_stored():
            return False
        if not is_handling_signal() or not is_configured():
            return False
        # In a transaction that a middleware has left open, the message would be rolled back with the failed attempt.
        return self.completion.has_worker and current().is_worker and not current().dialect.in_transaction
