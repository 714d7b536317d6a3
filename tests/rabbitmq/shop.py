"""An application whose Dramatiq broker is RabbitMQ: `dramatiq tests.rabbitmq.shop` runs its actors, which emit."""

import os

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker

import outbox

dramatiq.set_broker(RabbitmqBroker(url=os.environ["OUTBOX_TEST_BROKER_URL"]))


@dramatiq.actor(queue_name=os.environ["OUTBOX_TEST_SHOP_QUEUE"], max_retries=0)
def place_order(number: int) -> None:
    box = outbox.current()
    with box.dialect.connection(), box.database.atomic():
        outbox.emit("Order", number, "test.emitted", {"do": "pass"})
