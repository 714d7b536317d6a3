"""Deliver jobs to an in-process broker: a job counts as delivered once its actor has run.

An in-process broker keeps its queues in memory, and a queue in memory is lost when the process ends. If a job were
marked as delivered when its message enters the queue, a crash before the actor runs would lose the job. So the delivery
waits for the actor (`JobDestination` calls `JobCompletion.deliver`). Meanwhile the worker keeps the lease on the job's
row: if the process dies, the lease expires, and another process delivers the job. `deliver` enqueues at most one job
for each thread of the worker at a time.

The first run of the actor ends the job, whatever its result. If the actor raises an error, Dramatiq's middleware
enqueues a retry, and the in-process broker stores the retry as a new job (`in_process_broker.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import dramatiq
from dramatiq.errors import QueueNotFound
from dramatiq.middleware import Middleware, SkipMessage

from outbox.destinations.outcome import DELIVERED_OUTCOME, Outcome, Retry
from outbox.destinations.protocol import Lease
from outbox.dramatiq.enqueue_now import enqueue_now
from outbox.dramatiq.job import message_of
from outbox.errors import Unavailable, describe
from outbox.events.event import Event

# The option of a message that identifies one delivery of a job. The message's own id can't be used, because an
# application may send the same message twice. Nor can the job's id: a job that was given back may be delivered again
# while its earlier message is still in the queue.
DELIVERY_ID = "outbox_delivery_id"
# How long to wait for an actor before the lease is checked again.
WAIT_SECONDS = 0.5
# If the actor is still running this many seconds before the lease ends, the job is marked as delivered. Otherwise
# another delivery would run it a second time.
MARGIN_SECONDS = 5.0

# The states of a delivery.
QUEUED, RUNNING, DONE = "queued", "running", "done"


class JobCompletion(Middleware):
    """Records which deliveries wait in the queue, which are running, and which have run."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        # By the id of the delivery.
        self._states: dict[str, str] = {}
        # Deliveries whose job was given back to the table. Their messages are still in the queue, and must be skipped.
        self._withdrawn: set[str] = set()
        # How many threads the worker has; 0 while no worker runs.
        self._threads = 0
        # The threads of the worker that are running an actor.
        self._busy_threads: set[int] = set()

    def before_worker_boot(self, broker: dramatiq.Broker, worker: dramatiq.Worker) -> None:
        self._threads = worker.worker_threads

    def before_worker_shutdown(self, broker: dramatiq.Broker, worker: dramatiq.Worker) -> None:
        with self._changed:
            self._threads = 0
            self._changed.notify_all()

    def before_process_message(self, broker: dramatiq.Broker, message: Any) -> None:
        id = message.options.get(DELIVERY_ID)
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
        id = message.options.get(DELIVERY_ID)
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
        """Return whether this thread may wait for an actor.

        A thread of the worker that is running an actor may not: it might wait for itself.
        """
        return self.has_worker and threading.get_ident() not in self._busy_threads

    def deliver(self, broker: dramatiq.Broker, jobs: Iterator[Event], lease: Lease) -> Iterator[tuple[Event, Outcome]]:
        """Enqueue the messages, as many at a time as there are threads; yield each job once its actor has run."""
        waiting: dict[str, Event] = {}
        while True:
            job = next(jobs, None) if len(waiting) < self._threads else None
            if job is not None:
                id = str(uuid4())
                failure = self._enqueue(broker, job, id)
                if failure is not None:
                    yield job, failure
                else:
                    waiting[id] = job
            elif waiting:
                yield from self._wait_for_some(waiting, lease)
            else:
                return

    def _enqueue(self, broker: dramatiq.Broker, job: Event, id: str) -> Outcome | None:
        """Enqueue the message of a job; return an outcome if that is not possible. `id` identifies the delivery."""
        try:
            message = message_of(job).copy(options={DELIVERY_ID: id})
            with self._changed:
                self._states[id] = QUEUED
            enqueue_now(broker, message, is_stored=True)
        except Exception as error:
            self._forget(id)
            # A missing queue is not the job's fault, so it costs no attempt.
            return Unavailable(describe(error)) if isinstance(error, QueueNotFound) else Retry(describe(error))
        return None

    def _wait_for_some(self, waiting: dict[str, Event], lease: Lease) -> Iterator[tuple[Event, Outcome]]:
        """Wait until an actor has run, up to WAIT_SECONDS; remove the jobs that have an outcome from `waiting`.

        If the worker is stopping, or the lease is about to end, the jobs whose actor has not begun are given back. A
        worker that is stopping finishes the actors that are running. If the lease is about to end, their jobs are
        marked as delivered.
        """
        with self._changed:
            self._changed.wait_for(lambda: any(self._states[id] == DONE for id in waiting), WAIT_SECONDS)
            states = {id: self._states[id] for id in waiting}
            lease_ends = lease.seconds_left < MARGIN_SECONDS
            gives_back = lease_ends or self._threads == 0
            if gives_back:
                self._withdrawn |= {id for id, state in states.items() if state == QUEUED}
        for id, state in states.items():
            if state == QUEUED and gives_back:
                yield self._remove(waiting, id), _given_back()
            elif state == DONE or (state == RUNNING and lease_ends):
                yield self._remove(waiting, id), DELIVERED_OUTCOME

    def _remove(self, waiting: dict[str, Event], id: str) -> Event:
        self._forget(id)
        return waiting.pop(id)

    def _forget(self, id: str) -> None:
        with self._changed:
            self._states.pop(id, None)


def _given_back() -> Unavailable:
    """Return the outcome of a job whose actor did not begin in time: it is due immediately, and loses no attempt."""
    return Unavailable("the worker stopped, or was busy, before the actor began", not_before=timedelta(0))
