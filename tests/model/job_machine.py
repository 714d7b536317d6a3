"""A state machine that sends, replaces and cancels jobs in transactions and savepoints, beside a model in few lines.

The model is a list of jobs. A transaction or savepoint works on a copy, which takes the list's place if it commits.
"""

import copy
from collections import Counter
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import dramatiq
import pytest
from dramatiq.brokers.stub import StubBroker
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import outbox
from outbox.core import Outbox
from outbox.storage.models import OutboxEvent

MOST_LAYERS = 3
numbers = st.integers(0, 9)
keys = st.sampled_from(["a", "b"])


@dataclass
class Job:
    row: str | None
    message: str
    number: int
    key: str | None = None
    is_tried: bool = False
    is_enqueued: bool = False


class JobMachine(RuleBasedStateMachine):
    """`broker` is transactional, and `actor` is declared on it."""

    def __init__(self, box: Outbox, broker: StubBroker, actor: dramatiq.Actor[[int], None]) -> None:
        super().__init__()
        self.box, self.broker, self.actor = box, broker, actor
        OutboxEvent.delete().execute()
        broker.flush_all()
        self.layers: list[list[Job]] = [[]]
        self.contexts: list[tuple[Any, Any]] = []
        self.enqueued: Counter[tuple[str, int]] = Counter()
        self.messages: list[str] = []

    @property
    def jobs(self) -> list[Job]:
        return self.layers[-1]

    def teardown(self) -> None:
        while self.contexts:
            self.end_rolled_back(raises=True)

    # Transactions and savepoints

    @precondition(lambda self: len(self.contexts) < MOST_LAYERS)
    @rule()
    def begin(self) -> None:
        context = self.box.database.atomic()
        self.contexts.append((context, context.__enter__()))
        self.layers.append(copy.deepcopy(self.jobs))

    @precondition(lambda self: self.contexts)
    @rule()
    def commit(self) -> None:
        context, _ = self.contexts.pop()
        context.__exit__(None, None, None)
        self.layers[-2:] = [self.jobs]

    @precondition(lambda self: self.contexts)
    @rule(raises=st.booleans())
    def end_rolled_back(self, raises: bool) -> None:
        context, inner = self.contexts.pop()
        if raises:
            context.__exit__(ValueError, ValueError(), None)
        else:
            inner.rollback()
            context.__exit__(None, None, None)
        self.layers.pop()

    # Jobs

    @rule(number=numbers)
    def send(self, number: int) -> None:
        id = outbox.send(self.actor, number).message_id
        self.note(Job(id, id, number))

    @rule(number=numbers)
    def send_plainly(self, number: int) -> None:
        """As existing code does: outside a transaction the message is enqueued at once."""
        id = self.actor.send(number).message_id
        if self.contexts:
            self.note(Job(None, id, number))
        else:
            self.enqueued[id, number] += 1

    @rule(number=numbers, key=keys, on_duplicate=st.sampled_from(["raise", "ignore", "replace"]))
    def send_with_key(self, number: int, key: str, on_duplicate: Any) -> None:
        found = self.with_key(key)

        def call() -> str:
            options: dict[str, Any] = {"idempotency_key": key, "on_duplicate": on_duplicate}
            return outbox.send_with_options(self.actor, args=(number,), **options).message_id

        if found is not None and on_duplicate == "raise":
            with pytest.raises(outbox.DuplicateEvent):
                call()
        elif found is not None and on_duplicate == "ignore":
            assert call() == found.message
        elif found is not None and not found.is_tried:
            found.message, found.number = call(), number
            self.messages.append(found.message)
        else:
            if found is not None:
                found.key = None
            id = call()
            self.note(Job(id, id, number, key))

    @rule(key=keys)
    def cancel_by_key(self, key: str) -> None:
        found = self.with_key(key)
        self.cancel(found, actor=self.actor, idempotency_key=key)

    @precondition(lambda self: self.messages)
    @rule(data=st.data())
    def cancel_message(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(self.messages))
        self.cancel(next((job for job in self.jobs if id in (job.row, job.message)), None), id)

    def cancel(self, found: Job | None, *given: Any, **by_key: Any) -> None:
        is_untried = found is not None and not found.is_tried
        assert outbox.cancel(*given, **by_key) == is_untried
        if found is not None and is_untried:
            self.jobs.remove(found)

    def note(self, job: Job) -> None:
        self.jobs.append(job)
        self.messages.append(job.message)

    def with_key(self, key: str) -> Job | None:
        return next((job for job in self.jobs if job.key == key), None)

    # Delivery

    @precondition(lambda self: not self.contexts)
    @rule()
    def try_in_vain(self) -> None:
        """As if a worker had died with all of them."""
        OutboxEvent.update(attempts=1).where(OutboxEvent.attempts == 0).execute()
        for job in self.jobs:
            job.is_tried = True

    @precondition(lambda self: not self.contexts)
    @rule()
    def deliver(self) -> None:
        self.box.process_pending_events(1_000)
        for job in self.jobs:
            if not job.is_enqueued:
                job.is_tried = job.is_enqueued = True
                self.enqueued[job.message, job.number] += 1

    # What must be so

    @invariant()
    def the_table_holds_the_jobs(self) -> None:
        rows: list[dramatiq.Message[Any]] = [
            dramatiq.Message(**row.payload) for row in OutboxEvent.select(OutboxEvent.payload)
        ]
        assert Counter(map(shown, rows)) == Counter((job.message, job.number) for job in self.jobs)
        ids = {UUID(job.row) for job in self.jobs if job.row is not None}
        assert ids <= {row.id for row in OutboxEvent.select(OutboxEvent.id)}

    @invariant()
    def the_queue_holds_what_was_delivered(self) -> None:
        waiting = [dramatiq.Message.decode(text) for text in list(self.broker.queues[self.actor.queue_name].queue)]
        assert Counter(map(shown, waiting)) == self.enqueued


def shown(message: dramatiq.Message[Any]) -> tuple[str, int]:
    return message.message_id, message.args[0]
