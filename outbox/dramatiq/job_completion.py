"""Deliver jobs to an in-process broker: a job counts as delivered once its actor has run.

An in-process broker keeps its queues in memory. If a job counted as delivered when its message is in such a queue, it
would be lost if the process ended before the actor ran. So the delivery waits for the actor. Until then the row is
leased: if the process dies, the lease expires, and the job is delivered again. No more jobs are taken at a time than
the worker has threads.

The first run of the actor ends the job, whatever its result: Dramatiq's middleware enqueues a retry after an error, and
the in-process broker stores that as a job of its own (`in_process_broker.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import dramatiq
from dramatiq.errors import QueueNotFound
from dramatiq.middleware import Middleware, SkipMessage

from outbox.destinations.outcome import DELIVERED_OUTCOME, Outcome, Retry
from outbox.destinations.protocol import Lease
from outbox.dramatiq.enqueue_now import enqueue_now
from outbox.dramatiq.job import message_of
from outbox.errors import Unavailable, describe
from outbox.events.event import Event

# The option of a message that holds the id of its job. (The same message may have been sent twice.)
JOB_ID = "outbox_job_id"
# How long one wait for actors takes. It ends early if an actor has run.
WAIT_SECONDS = 0.5
# An actor that is still running when the lease is about to end counts as delivered: otherwise it would run twice.
MARGIN_SECONDS = 5.0

# The states of a job that a delivery waits for.
QUEUED, RUNNING, DONE = "queued", "running", "done"


class JobCompletion(Middleware):
    """Records which jobs wait in the queue, which are running, and which have run."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._states: dict[str, str] = {}
        # Jobs that were given back to the table, although their messages are still in the queue.
        self._withdrawn: set[str] = set()
        self._threads = 0
        self._busy_threads: set[int] = set()

    def before_worker_boot(self, broker: dramatiq.Broker, worker: dramatiq.Worker) -> None:
        self._threads = worker.worker_threads

    def before_worker_shutdown(self, broker: dramatiq.Broker, worker: dramatiq.Worker) -> None:
        with self._changed:
            self._threads = 0
            self._changed.notify_all()

    def before_process_message(self, broker: dramatiq.Broker, message: Any) -> None:
        id = message.options.get(JOB_ID)
        with self._changed:
            if id in self._withdrawn:
                self._withdrawn.discard(id)
                raise SkipMessage("its job was given back to the table")
            self._busy_threads.add(threading.get_ident())
            if id in self._states:
                self._states[id] = RUNNING

    def after_process_message(
        self, broker: dramatiq.Broker, message: Any, *, result: Any = None, exception: BaseException | None = None
    ) -> None:
        id = message.options.get(JOB_ID)
        with self._changed:
            self._busy_threads.discard(threading.get_ident())
            if id in self._states:
                self._states[id] = DONE
                self._changed.notify_all()

    def after_skip_message(self, broker: dramatiq.Broker, message: Any) -> None:
        self.after_process_message(broker, message)

    @property
    def has_worker(self) -> bool:
        """Return whether a worker of the broker runs in this process."""
        return self._threads > 0

    @property
    def can_wait(self) -> bool:
        """Return whether a worker runs whose actors this thread can wait for. A thread of that worker can't."""
        return self.has_worker and threading.get_ident() not in self._busy_threads

    def deliver(self, broker: dramatiq.Broker, jobs: Iterator[Event], lease: Lease) -> Iterator[tuple[Event, Outcome]]:
        """Enqueue the messages, as many at a time as there are threads; yield each job once its actor has run."""
        waiting: dict[str, Event] = {}
        while True:
            job = next(jobs, None) if len(waiting) < self._threads else None
            if job is not None:
                error = self._enqueue(broker, job)
                if error is not None:
                    yield job, error
                else:
                    waiting[str(job.id)] = job
            elif waiting:
                yield from self._ended(waiting, lease)
            else:
                return

    def _enqueue(self, broker: dramatiq.Broker, job: Event) -> Outcome | None:
        """Enqueue the message of a job; return an outcome if that is not possible."""
        id = str(job.id)
        try:
            message = message_of(job).copy(options={JOB_ID: id})
            with self._changed:
                self._states[id] = QUEUED
            enqueue_now(broker, message, is_stored=True)
        except Exception as error:
            self._forget(id)
            return Unavailable(describe(error)) if isinstance(error, QueueNotFound) else Retry(describe(error))
        return None

    def _ended(self, waiting: dict[str, Event], lease: Lease) -> Iterator[tuple[Event, Outcome]]:
        """Wait a moment; yield the jobs that have ended, and take them out of `waiting`."""
        with self._changed:
            self._changed.wait_for(lambda: any(self._states[id] == DONE for id in waiting), WAIT_SECONDS)
            states = {id: self._states[id] for id in waiting}
            must_end = self._threads == 0 or lease.seconds_left < MARGIN_SECONDS
            if must_end:
                self._withdrawn |= {id for id in waiting if states[id] == QUEUED}
        for id, state in states.items():
            if state == DONE or (must_end and (state == QUEUED or lease.seconds_left < MARGIN_SECONDS)):
                self._forget(id)
                yield waiting.pop(id), _given_back() if state == QUEUED else DELIVERED_OUTCOME

    def _forget(self, id: str) -> None:
        with self._changed:
            self._states.pop(id, None)


def _given_back() -> Unavailable:
    """Return the outcome of a job whose actor did not begin in time. It is due again at once, at no cost."""
    return Unavailable("the worker stopped, or was busy, before the actor began", not_before=timedelta(0))
