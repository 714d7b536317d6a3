"""An application on RabbitMQ whose broker is transactional: `dramatiq tests.rabbitmq.jobs` runs its actors."""

import os
import sys

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker

import outbox
from tests.apps.ledger import write

db = outbox.current().database
queue = os.environ["OUTBOX_TEST_SHOP_QUEUE"]
broker = RabbitmqBroker(url=os.environ["OUTBOX_TEST_BROKER_URL"])
dramatiq.set_broker(outbox.transactional(broker, databases=[db]))


@dramatiq.actor(queue_name=queue, max_retries=0)
def charge(number: int) -> None:
    write("ran", id=f"{number:032x}", body="", attempt=1, pid=os.getpid())


@dramatiq.actor(queue_name=queue, max_retries=0)
def place_order(number: int) -> None:
    """Send in a transaction, from a worker of the application; and once more, in one that is rolled back."""
    with db.connection_context():
        with db.atomic():
            charge.send(number)
        with db.atomic() as transaction:
            charge.send(1_000_000 + number)
            transaction.rollback()


if __name__ == "__main__":  # `python -m tests.rabbitmq.jobs FIRST NUMBER`, in one transaction each
    with db.connection_context():
        for number in range(int(sys.argv[1]), int(sys.argv[1]) + int(sys.argv[2])):
            with db.atomic():
                charge.send(number)
