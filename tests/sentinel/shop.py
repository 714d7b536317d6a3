"""An application whose Dramatiq broker is on a Redis that a Sentinel watches."""

import os

import dramatiq
from dramatiq.brokers.redis import RedisBroker

import outbox
from tests.apps.queues import write_queues
from tests.sentinel.server import master_client

client = master_client(os.environ["OUTBOX_TEST_SENTINELS"])
dramatiq.set_broker(RedisBroker(client=client, namespace=os.environ["OUTBOX_TEST_BROKER_NAMESPACE"]))


@dramatiq.actor(queue_name="shop", max_retries=0)
def place_order(number: int) -> None:
    box = outbox.current()
    with box.dialect.connection(), box.database.atomic():
        outbox.emit("Order", number, "test.emitted", {"do": "pass"})


dramatiq.actor(queue_name="shop", max_retries=0)(write_queues)
