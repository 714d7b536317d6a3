"""Events for the browser to look at, with handlers that do as the test says."""

from pathlib import Path
from uuid import UUID

import dramatiq
from dramatiq.brokers.stub import StubBroker

from outbox.dramatiq.send import store_message
from outbox.storage.models import JOB, OutboxEvent
from tests.support.processes import Stage


class Gate:
    """What a handler waits at: shut, open, or bad, which makes it fail."""

    def __init__(self, stage: Stage) -> None:
        self.path = stage.gate()
        self._bad = Path(f"{self.path}.bad")

    def make_bad(self) -> None:
        self._bad.touch()
        self.path.touch()

    def mend(self) -> None:
        self._bad.unlink()


def send_job(stage: Stage) -> UUID:
    """A job that waits, since no worker has its broker."""
    message: dramatiq.Message[None] = dramatiq.Message(
        queue_name="money",
        actor_name="charge",
        args=(42,),
        kwargs={"currency": "EUR", "api_key": "sk-123", "lines": [{"article": n, "number": 1} for n in range(20)]},
        options={"max_retries": 7},
    )
    store_message(stage.box, StubBroker(), message, idempotency_key="order-42")
    # By the name of the actor too: a scheduler may have stored runs of periodic actors, which are jobs as well.
    sent = OutboxEvent.select(OutboxEvent.id).where(OutboxEvent.kind == JOB, OutboxEvent.event_type == "charge")
    (job,) = stage.box.dialect.select(sent)
    return UUID(str(job.id))


def fail_one(stage: Stage) -> tuple[UUID, Gate]:
    """An event that a real worker has tried and given up; its cause can be mended."""
    gate = Gate(stage)
    gate.make_bad()
    (event,) = stage.emit(1, do="wait", gate=str(gate.path), max_attempts=1)
    stage.wake()
    stage.wait_for(lambda: (event, "failed") in stage.rows("id", "status"), "the event has failed")
    return event, gate


def block_key(stage: Stage, key: str = "order:4711") -> tuple[UUID, UUID]:
    """Return an event that a real worker has given up, and one that waits behind it."""
    head, *_, last = stage.emit(3, do="fail", times=9, max_attempts=1, ordering_key=key)
    stage.wake()
    stage.wait_for(lambda: (last, "waits") in stage.rows("id", "order_state"), "the event waits behind another")
    return head, last
