"""Jobs as tests need them: a broker in memory, an actor, and jobs in every state."""

from collections.abc import Iterator
from typing import Any

import dramatiq
import pytest
from dramatiq.brokers.stub import StubBroker
from dramatiq.encoder import JSONEncoder, PickleEncoder

import outbox
from outbox.core import Outbox
from outbox.dramatiq.job import BrokerRole
from outbox.storage.models import OutboxEvent
from tests.support.table import change, stored


@pytest.fixture
def stub_broker() -> Iterator[StubBroker]:
    """Dramatiq's global broker, as an application has set it."""
    broker = StubBroker()
    dramatiq.set_broker(broker)
    yield broker
    dramatiq.broker.global_broker = None


@pytest.fixture
def charge(stub_broker: StubBroker) -> Any:
    """An actor with a queue of its own."""
    return declare("charge")


def declare(name: str, queue: str = "money") -> Any:
    """Declare an actor on the global broker."""

    @dramatiq.actor(actor_name=name, queue_name=queue)
    def actor(*args: Any, **options: Any) -> None:
        pass

    return actor


def send(actor: Any, *args: Any, **options: Any) -> OutboxEvent:
    """Send a message in a transaction of its own; return the row of its job."""
    message = outbox.send_with_options(actor, args=args, **options)
    return row_of(message)


def row_of(message: dramatiq.Message[Any]) -> OutboxEvent:
    """Return the row of a message."""
    found: OutboxEvent = OutboxEvent.get(OutboxEvent.aggregate_id == message.message_id)
    return found


def send_opaque(actor: Any, *args: Any) -> OutboxEvent:
    """Send a message with an encoder that does not write JSON."""
    dramatiq.set_encoder(PickleEncoder())
    try:
        return send(actor, *args)
    finally:
        dramatiq.set_encoder(JSONEncoder())


def send_to_nobody(box: Outbox, broker: StubBroker, name: str = "gone") -> OutboxEvent:
    """Send a job through a broker that no worker has, and let a worker claim it that does not have the actor."""
    actor = declare(name)
    job = send(actor)
    del broker.actors[name]
    change(job, headers={"broker_role": BrokerRole.OTHER.value, "broker": "another"})
    box.process_pending_events()
    return stored(job)


def enqueued(broker: StubBroker, queue: str = "money") -> list[dramatiq.Message[Any]]:
    """Return the messages in a queue, in their order."""
    return [dramatiq.Message.decode(text) for text in list(broker.queues[queue].queue)]
